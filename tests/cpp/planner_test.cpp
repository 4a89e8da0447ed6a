// SPDX-License-Identifier: Apache-2.0
#include "host/planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "host/cpu_plan.hpp"
#include "host/gpu_plan.hpp"
#include "planner_scene.hpp"

namespace onchip::host {
namespace {

TEST(Tiles, NamesTellInstancesApart) {
  std::set<std::string> names;
  for (const TileRow& row : kTiles) {
    const std::string name = std::to_string(row.family) + (row.pass == Pass::forward ? "f" : "b") +
                             std::to_string(row.element_bytes) + "d" + std::to_string(row.dim) +
                             "_" + std::to_string(row.dim_v) + std::string(row.suffix);
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST(Tiles, EveryRowIsTakenForSomeProblemOnSomeDevice) {
  for (const TileRow& row : kTiles) {
    bool taken = false;
    for (const std::string& name : named_devices()) {
      const DeviceInfo& d = device(name);
      if (d.compute_capability != 90 && row.family == kSm90) continue;
      taken |= find_tile(row.family, {row.pass, row.element_bytes, row.dim, row.dim_v, row.masks,
                                      d.on_chip_bytes, row.keys}) == &row;
    }
    EXPECT_TRUE(taken) << row.family << " d" << row.dim << row.suffix;
  }
}

// Sums done by hand; sm90 adds 1 KiB, in which its tiles begin at a multiple of that.
TEST(Tiles, SharedMemoryIsTheSumOfTheBuffers) {
  const auto bytes = [](std::int32_t family, Pass pass, std::int64_t element, std::int64_t dim,
                        std::int64_t dim_v, MaskClass masks, std::int64_t budget,
                        std::int64_t keys = 0) {
    return on_chip_bytes(*find_tile(family, {pass, element, dim, dim_v, masks, budget, keys}));
  };
  const auto sm90 = [&](Pass pass, std::int64_t dim, std::int64_t dim_v, MaskClass masks,
                        std::int64_t keys = 0) {
    return bytes(kSm90, pass, 2, dim, dim_v, masks, 232448, keys) - 1024;
  };
  EXPECT_EQ(sm90(kFwd, 64, 64, kCausal), 163840);  // two of Q, outputs
  EXPECT_EQ(sm90(kFwd, 64, 64, kDense, 8192), 172032);
  EXPECT_EQ(sm90(kFwd, 96, 96, kDense), 212992);  // panels of 64 columns: as 128
  EXPECT_EQ(sm90(kFwd, 128, 128, kCausal), 212992);
  EXPECT_EQ(sm90(kFwd, 192, 192, kCausal), 212992);
  EXPECT_EQ(sm90(kFwd, 192, 128, kDense), 229376);
  EXPECT_EQ(sm90(kFwd, 256, 256, kDense), 212992);
  EXPECT_EQ(bytes(kSm80, kFwd, 2, 128, 128, kDense, 101376), 98304);
  EXPECT_EQ(bytes(kSm80, kBwd, 2, 64, 64, kDense, 166912), 98304 + 2 * 64 * 8);
  EXPECT_EQ(bytes(kSm80, kFwd, 4, 128, 128, kDense, 166912), 0);
}

TEST(Planner, PicksTheFamilyByDevice) {
  const Problem p = dense(2, 16, 16, 1024, 1024, 128);
  for (const std::string& name : named_devices()) {
    const char* family = device(name).compute_capability == 90 ? "sm90" : "sm80";
    EXPECT_EQ(make_plan(p, device(name)).backend, family) << name;
    EXPECT_EQ(make_plan(p, device(name)).kernel, family + std::string("_fwd_bfloat16_d128"))
        << name;
    EXPECT_EQ(make_plan(backward_of(p), device(name)).backend, "sm80") << name;
  }
  // wgmma has no float32, so Hopper runs the sm80 kernel.
  const PlanInfo wide =
      make_plan(backward_of(dense(2, 16, 16, 1024, 1024, 80, DType::float32)), hopper());
  EXPECT_EQ(wide.backend, "sm80");
  EXPECT_EQ(wide.kernel, "sm80_bwd_float32_d256");
  DeviceInfo own = device("H200");
  own.family = 0;  // left to the planner
  EXPECT_EQ(make_plan(p, own).kernel, "sm90_fwd_bfloat16_d128");
  own.family = 80;
  EXPECT_EQ(make_plan(p, own).kernel, "sm80_fwd_bfloat16_d128");
  own.family = 85;
  EXPECT_THROW(make_plan(p, own), Error);
  EXPECT_EQ(make_plan(p, some_cpu()).backend, "cpu");
}

TEST(Planner, PicksTheTileByLengthAndMask) {
  const auto kernel = [](const Problem& p) { return make_plan(p, hopper()).kernel; };
  EXPECT_EQ(kernel(dense(1, 16, 16, 8191, 8191, 64)), "sm90_fwd_bfloat16_d64");
  EXPECT_EQ(kernel(dense(1, 16, 16, 8192, 8192, 64)), "sm90_fwd_bfloat16_d64_long");
  EXPECT_EQ(kernel(dense(1, 16, 16, 8192, 8192, 128)), "sm90_fwd_bfloat16_d128");
  Problem p = dense(1, 16, 16, 8192, 8192, 64);
  p.window_right = 0;
  EXPECT_EQ(kernel(p), "sm90_fwd_bfloat16_d64");
  p.window_right = -1;
  // How long the others of a batch are is no matter to a row's bits.
  p.has_seqused_k = true;
  EXPECT_EQ(kernel(p), "sm90_fwd_bfloat16_d64");
  p.has_seqused_k = false, p.packed = p.has_cu_seqlens_k = true;
  EXPECT_EQ(kernel(p), "sm90_fwd_bfloat16_d64");
}

/// The lean kernels multiply scores of -inf by the scale.
TEST(Planner, TakesAFullInstanceWhereTheScaleIsNotAboveZeroInFloat32) {
  for (const double scale : {0.0, -1.0, 1e-50}) {
    Problem p = dense(1, 16, 16, 512, 512, 128);
    p.scale = scale;
    EXPECT_EQ(make_plan(p, hopper()).kernel, "sm80_fwd_bfloat16_d128_full") << scale;
  }
}

TEST(Planner, NamesTheInstanceThatTheOptionsNeed) {
  const auto kernel = [](const Problem& p) { return make_plan(p, device("A100")).kernel; };
  const Problem lean = dense(2, 16, 16, 1024, 1024, 64, DType::float16);
  Problem p = lean;
  p.window_left = p.window_right = 5;
  p.has_sinks = true;
  EXPECT_EQ(kernel(p), "sm80_fwd_float16_d64");
  p = lean, p.softcap = 1;
  EXPECT_EQ(kernel(p), "sm80_fwd_float16_d64_full");
  p = lean, p.bias_dtype = DType::float32;
  EXPECT_EQ(kernel(p), "sm80_fwd_float16_d64_full");
  p = lean, p.has_alibi = true;
  EXPECT_EQ(kernel(p), "sm80_fwd_float16_d64_full");
  p = lean, p.dropout_p = 0.5;
  EXPECT_EQ(kernel(p), "sm80_fwd_float16_d64_full");
  p = lean, p.scale = -1;  // the greatest product is the least score
  EXPECT_EQ(kernel(p), "sm80_fwd_float16_d64_full");
}

// What a launch of the packed form needs is known on the device only: the bound must hold for any
// lengths, and not be far off.
TEST(Planner, TheBoundOfPackedTilesHolds) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t tile = 16 << random() % 4;
    const std::int64_t group = 1 + static_cast<std::int64_t>(random() % 9);
    const std::int64_t batch = static_cast<std::int64_t>(random() % 12);
    Problem p = dense(batch, group, 1, 1, 1, 64);
    p.packed = true;
    p.total_q = 0;
    std::int64_t tiles = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto rows = static_cast<std::int64_t>(random() % (random() % 2 == 0 ? 20 : 300));
      p.total_q += rows;
      tiles += rows < tile ? (rows * group + tile - 1) / tile : (rows + tile - 1) / tile * group;
    }
    ASSERT_LE(tiles, query_tiles(p, tile)) << "round " << round;
    ASSERT_LE(query_tiles(p, tile), p.total_q * group / tile * 2 + batch);
  }
}

TEST(Planner, PicksTheTileByMaskHeadDimAndSharedMemory) {
  Problem p = dense(2, 16, 16, 4096, 4096, 128);
  EXPECT_EQ(make_plan(p, hopper()).tile_k, 128);
  p.dim = p.dim_v = 256;
  EXPECT_EQ(make_plan(p, hopper()).tile_k, 64);
  EXPECT_EQ(make_plan(p, device("B200")).tile_q, 64);
  EXPECT_EQ(make_plan(p, device("A100")).tile_q, 64);
  EXPECT_EQ(make_plan(p, device("L40S")).kernel, "sm80_fwd_bfloat16_d256");
  p.dim = 192;
  p.dim_v = 128;
  EXPECT_EQ(make_plan(p, hopper()).kernel, "sm90_fwd_bfloat16_d192_128");
  p.dim = 8;
  p.dim_v = 200;
  EXPECT_EQ(make_plan(p, device("B200")).kernel, "sm80_fwd_bfloat16_d256");
}

TEST(Planner, SaysWhichBackendDoesWhatAGpuCannot) {
  const DeviceInfo& h200 = device("H200");
  EXPECT_EQ(plan_error(dense(1, 1, 1, 64, 64, 64, DType::float64), h200),
            "q: float64 has no GPU kernel (float32, float16, bfloat16 have); the cpu backend "
            "computes it");
  EXPECT_EQ(plan_error(dense(1, 1, 1, 64, 64, 264), h200),
            "q: head dim 264, expected a multiple of 8 up to 256 on a GPU; the cpu backend takes "
            "any");
  EXPECT_EQ(plan_error(dense(1, 1, 1, 64, 64, 100), h200),
            "q: head dim 100, expected a multiple of 8 up to 256 on a GPU; the cpu backend takes "
            "any");
  Problem p = dense(1, 1, 1, 64, 64, 64);
  p.dim_v = 12;
  EXPECT_EQ(plan_error(p, h200),
            "v: head dim 12, expected a multiple of 8 up to 256 on a GPU; the cpu backend takes "
            "any");
  DeviceInfo old = h200;
  old.name = "V100";
  old.compute_capability = 70;
  EXPECT_EQ(plan_error(dense(1, 1, 1, 64, 64, 64), old),
            "device: V100 has compute capability 70, expected 80 or more; the cpu backend has no "
            "such limit");
  DeviceInfo small = h200;
  small.on_chip_bytes = 4096;
  EXPECT_NE(plan_error(dense(1, 1, 1, 64, 64, 64), small).find("4096 bytes"), std::string::npos);
  EXPECT_NE(plan_error(backward_of(dense(std::int64_t{1} << 40, 1, 1, 1 << 20, 1, 256)), h200)
                .find("workspace"),
            std::string::npos);
}

TEST(Planner, NeverExceedsTheBudgetOfAnyDevice) {
  const MaskClass classes[] = {kDense, kCausal, kAny};
  for (const std::string& name : named_devices()) {
    const DeviceInfo& d = device(name);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const DType dtype : {DType::float32, DType::float16}) {
        for (std::int64_t dim = 8; dim <= 256; dim += 8) {
          for (std::int64_t dim_v = 8; dim_v <= 256; dim_v += 8) {
            for (const MaskClass masks : classes) {
              Problem p = dense(1, 2, 1, 100, 100, dim, dtype);
              p.pass = pass;
              p.dim_v = dim_v;
              if (masks != kDense) p.window_right = 0;
              if (masks == kAny) p.window_left = 10;
              const PlanInfo info = make_plan(p, d);
              ASSERT_LE(info.on_chip_bytes, d.on_chip_bytes) << name << ' ' << info.kernel;
              const TileRow* row = tile_of(p, info);
              ASSERT_NE(row, nullptr) << name << ' ' << info.kernel;
              ASSERT_EQ(on_chip_bytes(*row), info.on_chip_bytes);
              ASSERT_TRUE(row->dim >= dim && row->dim_v >= dim_v && row->masks >= masks);
            }
          }
        }
      }
    }
  }
}

TEST(Splits, CoverEveryKeyExactlyOnce) {
  for_random_plans([](const Problem& p, const DeviceInfo&, const PlanInfo& info) {
    ASSERT_GE(info.num_splits, 1);
    if (p.pass == Pass::backward) {
      ASSERT_EQ(info.num_splits, 1);
    }
    std::int64_t covered = 0;
    for (std::int64_t s = 0; s < info.num_splits; ++s) {
      const std::int64_t begin = s * info.split_size;
      const std::int64_t end = std::min(begin + info.split_size, p.seqlen_k);
      ASSERT_EQ(begin, covered);
      if (p.seqlen_k > 0) {
        ASSERT_LT(begin, end) << "part " << s << " is empty";
      }
      covered = end;
    }
    ASSERT_EQ(covered, p.seqlen_k);
  });
}

TEST(Splits, FillADeviceThatOneTileWouldLeaveIdle) {
  Problem p = dense(1, 32, 8, 1, 65536, 128);
  p.window_right = 0;
  EXPECT_EQ(make_plan(p, hopper()).num_splits, 1);
  p.num_splits = 0;
  const PlanInfo decode = make_plan(p, hopper());
  EXPECT_EQ(decode.num_splits, 14);  // 8 heads x 14 parts busy 112 of 132 multiprocessors
  EXPECT_EQ(decode.split_size, 37 * 128);
  EXPECT_EQ(decode.grid, 112);
  // Outputs and lse of the parts in float32.
  EXPECT_EQ(decode.workspace_bytes, 14U * 32 * 128 * 4 + 14U * 32 * 4);

  p.batch = p.total_q = 128;
  EXPECT_EQ(make_plan(p, hopper()).num_splits, 1);  // full without
  p = dense(1, 32, 8, 1, 256, 128);
  p.num_splits = 0;
  EXPECT_EQ(make_plan(p, hopper()).num_splits, 1);  // too few keys to be worth it
  p = dense(1, 32, 8, 1, 65536, 128);
  p.num_splits = 0;
  p.window_left = 4096;
  EXPECT_EQ(make_plan(p, hopper()).num_splits, 1);  // most parts would see no key
  p = dense(0, 32, 8, 1, 65536, 128);
  p.num_splits = 0;
  EXPECT_EQ(make_plan(p, hopper()).num_splits, 1);
}

TEST(Splits, AFixedSizeHoldsWhateverTheBatch) {
  for (const std::int64_t batch : {1, 7, 500}) {
    for (const DeviceInfo& d : all_devices()) {
      Problem p = dense(batch, 32, 8, 1, 10000, 128);
      p.split_size = 3000;
      p.num_splits = 50;
      const PlanInfo info = make_plan(p, d);
      EXPECT_EQ(info.split_size, 3000) << d.name;
      EXPECT_EQ(info.num_splits, 4) << d.name;
    }
  }
}

TEST(Splits, AGivenNumberIsAnUpperBoundInWholeTiles) {
  Problem p = dense(1, 8, 8, 1, 1000, 64);
  p.num_splits = 3;
  const PlanInfo info = make_plan(p, device("A100"));
  EXPECT_EQ(info.tile_k, 128);
  EXPECT_EQ(info.split_size, 384);
  EXPECT_EQ(info.num_splits, 3);
  p.num_splits = 100;
  EXPECT_EQ(make_plan(p, device("A100")).num_splits, 8);
}

TEST(Planner, HeadsOfAGroupShareATileWhereOneHeadWouldWasteIt) {
  Problem p = dense(3, 32, 8, 16, 4096, 128);
  EXPECT_TRUE(packs_heads(p, 128));
  EXPECT_EQ(make_plan(p, device("A100")).grid, 3 * 8);  // 4 heads x 16 queries fit one tile
  p = dense(3, 32, 8, 1024, 4096, 128);
  EXPECT_FALSE(packs_heads(p, 128));
  EXPECT_EQ(make_plan(p, device("A100")).grid, 3 * 32 * 8);
  EXPECT_FALSE(packs_heads(dense(3, 8, 8, 16, 4096, 128), 128));  // no group
}

TEST(Planner, GridsCoverTheWork) {
  const Problem p = dense(2, 16, 4, 1000, 3000, 128);
  EXPECT_EQ(make_plan(p, device("A100")).grid, 2 * 16 * 8);
  EXPECT_EQ(make_plan(p, hopper()).grid, 132);  // persistent blocks
  // A block of the backward pass takes all heads of the group in turn.
  EXPECT_EQ(make_plan(backward_of(p), device("A100")).grid, 2 * 4 * 24);
  EXPECT_EQ(make_plan(dense(1, 2, 2, 100, 100, 128), hopper()).grid, 2);
  EXPECT_EQ(make_plan(dense(2, 16, 4, 0, 100, 128), device("A100")).grid, 0);
  // A packed batch has at most one partial tile a sequence.
  Problem packed = dense(10, 4, 4, 1000, 1000, 128);
  packed.packed = packed.has_cu_seqlens_k = true;
  packed.total_q = packed.total_k = 1280;
  EXPECT_EQ(make_plan(packed, device("A100")).grid, 4 * ((1280 + 10 * 127) / 128));
  EXPECT_EQ(make_plan(dense(100000, 1, 1, 64, 64, 64), device("A100")).grid, 100000);
}

TEST(Planner, BackwardWorkspaceIsLinearAndFollowsTheOptions) {
  const Problem p = backward_of(dense(2, 8, 8, 1000, 1000, 128));
  const DeviceInfo& a100 = device("A100");
  const std::size_t rows = 2 * 8 * 1000;
  const auto lines = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t statistics = 2 * lines(rows * 4);  // lse in the exponent's base, and D
  EXPECT_EQ(make_plan(p, a100).workspace_bytes, statistics + rows * 128 * 4);
  Problem dense_dq = p;  // in its memory lie the statistics until it is written
  for (const Strides& strides : {Strides{8 * 128 * 1000, 8 * 128, 128},     // (B, S, H, D)
                                 Strides{8 * 128 * 1000, 128, 128 * 1000},  // (B, H, S, D)
                                 Strides{8 * 128, 2 * 8 * 128, 128}}) {     // (S, B, H, D)
    dense_dq.dq = strides;
    EXPECT_EQ(make_plan(dense_dq, a100).workspace_bytes, rows * 128 * 4);
  }
  dense_dq.dq.head = 256;  // between those of another tensor
  EXPECT_EQ(make_plan(dense_dq, a100).workspace_bytes, statistics + rows * 128 * 4);
  Problem ordered = p;
  ordered.dq = {8 * 128 * 1000, 8 * 128, 128};
  ordered.deterministic = true;  // needs no float32 sums of dQ
  EXPECT_EQ(make_plan(ordered, a100).workspace_bytes, statistics);
  Problem packed = p;
  packed.packed = packed.has_cu_seqlens_k = true;  // and where the tiles of a sequence begin
  EXPECT_EQ(make_plan(packed, a100).workspace_bytes, statistics + rows * 128 * 4 + 256);
  EXPECT_EQ(make_plan(dense(2, 8, 8, 1000, 1000, 128), a100).workspace_bytes, 0U);
}

TEST(Planner, TakesTheCpusTilesFromTheCpuPlan) {
  Problem p = dense(1, 8, 8, 2048, 2048, 64, DType::float32);
  const PlanInfo info = make_plan(p, some_cpu());
  const CpuPlan cpu = plan_cpu(p, 4);
  EXPECT_EQ(info.kernel, "cpu_fwd_float32");
  EXPECT_EQ(info.tile_q, cpu.tile_q);
  EXPECT_EQ(info.tile_k, cpu.tile_k);
  EXPECT_EQ(info.grid, cpu.tasks);
  EXPECT_EQ(info.threads, 4);
  EXPECT_EQ(info.warps, 0);
  EXPECT_EQ(info.on_chip_bytes, static_cast<std::int64_t>(cpu.scratch_bytes));
  EXPECT_EQ(info.workspace_bytes, cpu.workspace_bytes());
  p.dtype = p.stats_dtype = DType::float64;
  p.dim = p.dim_v = 300;
  EXPECT_EQ(make_plan(backward_of(p), some_cpu()).kernel, "cpu_bwd_float64");
}

// Broadcast arrays have any extent: sizes that do not fit into 64 bits are refused, not wrapped.
TEST(Planner, RefusesACpuWorkspaceThatDoesNotFit) {
  const auto refused = [](const Problem& p) {
    const std::string error = plan_error(p, some_cpu());
    EXPECT_NE(error.find("workspace: the problem needs 2^63 bytes or more"), std::string::npos)
        << error;
  };
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  Problem p = dense(kMany, kMany, 1, 1, 1, 8);
  refused(p);
  refused(backward_of(dense(2, 1, 1, kMany, kMany, kMany)));
  p = backward_of(dense(1, 2, 2, 1, 1, 8));
  p.packed = p.has_cu_seqlens_k = true;
  p.batch = p.seqlen_k = p.total_k = kMany;
  EXPECT_EQ(plan_error(p, some_cpu()), "no error");  // a thread's own sums of a head
  p = dense(1, 8, 8, 1, kMany, 8);
  p.split_size = 1;
  p.total_q = kMany;
  refused(p);
}

TEST(Planner, CostsLieBetweenOncePerTensorAndNoCache) {
  for_random_plans([](const Problem& p, const DeviceInfo&, const PlanInfo& info) {
    // Outputs are written once at least; nothing moves more than without a cache.
    const Workload work = workload_of(p);
    Tiling uncached = tiling_of(p, info);
    uncached.l2_bytes = 0;
    const Traffic most = tiled_traffic(work, uncached);
    ASSERT_LE(info.cost.bytes_read, most.read * (1 + 1e-12));
    ASSERT_LE(info.cost.bytes_written, most.written * (1 + 1e-12));
    // Queries that no key sees may be left out of backward's reads.
    if (p.pass == Pass::forward) {
      ASSERT_GE(info.cost.bytes_read, work.q_bytes());
    }
    ASSERT_GE(info.cost.bytes_written, p.pass == Pass::forward
                                           ? work.out_bytes()
                                           : work.q_bytes() + work.k_bytes() + work.v_bytes());
    ASSERT_EQ(info.cost.flops > 0, visible_scores(work.span) > 0 && p.batch > 0);
    ASSERT_GE(info.cost.seconds, 0);
    ASSERT_GE(info.cost.peak_bytes, static_cast<double>(info.workspace_bytes));
  });
}

}  // namespace
}  // namespace onchip::host
