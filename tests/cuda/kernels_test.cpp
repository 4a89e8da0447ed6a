// SPDX-License-Identifier: Apache-2.0
// The instances of this build against the planner's table. Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "common/kernel.hpp"
#include "host/plan_impl.hpp"
#include "host/tiles.hpp"

namespace onchip {
namespace {

TEST(Kernels, AreThoseOfThePlannersTable) {
  const auto all = cuda::kernels();
  const bool has_hopper = std::any_of(all.begin(), all.end(), [](const cuda::Kernel& kernel) {
    return std::string_view(kernel.name).starts_with("sm90_");
  });
  for (const host::TileRow& row : host::kTiles) {
    const bool single = row.element_bytes == 4;
    if (row.family == host::kSm90 && !has_hopper) continue;  // a build for other architectures
    for (const char* dtype : {"float16", "bfloat16", "float32"}) {
      if ((std::string(dtype) == "float32") != single) continue;
      for (const char* full : {"", "_full"}) {
        if (single && *full != 0) continue;
        const std::string name = "sm" + std::to_string(row.family) +
                                 (row.pass == Pass::forward ? "_fwd_" : "_bwd_") + dtype + "_d" +
                                 std::to_string(row.dim) +
                                 (row.dim == row.dim_v ? "" : "_" + std::to_string(row.dim_v)) +
                                 std::string(row.suffix) + full;
        int found = 0;
        int shared = 0;
        for (const cuda::Kernel& kernel : all) {
          if (kernel.name != name) continue;
          ++found;
          shared = std::max(shared, kernel.shared_bytes);
          EXPECT_EQ(kernel.threads, 32 * row.warps) << name;
          if (single) continue;
          EXPECT_EQ(kernel.tile_q, row.tile_q) << name;
          EXPECT_EQ(kernel.tile_k, row.tile_k) << name;
          if (row.family != host::kSm90) continue;
          EXPECT_EQ(kernel.buffers.k, row.stages) << name;
          EXPECT_EQ(kernel.buffers.v, row.v_stages > 0 ? row.v_stages : row.stages) << name;
          EXPECT_EQ(kernel.buffers.q, row.q_stages) << name;
        }
        EXPECT_EQ(found, single && row.pass == Pass::backward ? 2 : 1) << name;
        EXPECT_EQ(shared, host::on_chip_bytes(row)) << name;
      }
    }
  }
}

TEST(Kernels, ThoseBesideTheMainOneAreThere) {
  for (const std::string what : {"sm80_dq_", "sm80_dbias_"}) {
    for (const char* size : {"float16_d64", "float16_d128", "float16_d256", "bfloat16_d64",
                             "bfloat16_d128", "bfloat16_d256", "float32_d256"}) {
      const auto all = cuda::kernels();
      EXPECT_EQ(std::count_if(all.begin(), all.end(),
                              [&](const cuda::Kernel& k) { return k.name == what + size; }),
                1)
          << what << size;
    }
  }
}

TEST(Kernels, ThoseOfOneNameStandSideBySide) {
  const auto all = cuda::kernels();
  for (std::size_t n = 0; n < all.size(); ++n) {
    for (std::size_t m = n + 2; m < all.size(); ++m) {
      if (std::string(all[n].name) == all[m].name) {
        EXPECT_STREQ(all[m - 1].name, all[m].name);
      }
    }
  }
}

}  // namespace
}  // namespace onchip
