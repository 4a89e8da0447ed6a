// SPDX-License-Identifier: Apache-2.0
// Times the Hopper forward kernels of this build against each other, candidates
// (cuda/candidates.cmake) beside those of the planner: one line of JSON for each kernel of each
// cell. `onchip tune` runs it.
//
//   onchip_tune [<rounds>]
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "common/kernel.hpp"
#include "onchip/attention.hpp"
#include "tuning.hpp"

namespace {

using namespace onchip::tuning;
using onchip::cuda::Kernel;

constexpr std::array<std::int64_t, 6> kLengths{512, 1024, 2048, 4096, 8192, 16384};
constexpr double kSampleSeconds = 0.01;
constexpr std::array kDims{Dims{64, 64},   Dims{96, 96},   Dims{128, 128},
                           Dims{192, 128}, Dims{192, 192}, Dims{256, 256}};

/// The lean kernels of these head dimensions: the planner's "sm90_fwd_bfloat16_d64" and those with
/// a suffix, but for those of onchip_timeline.
std::vector<const Kernel*> kernels_for(const Dims& dims) {
  std::string prefix = "sm90_fwd_bfloat16_d" + std::to_string(dims.q);
  if (dims.v != dims.q) prefix += "_" + std::to_string(dims.v);
  std::vector<const Kernel*> found;
  for (const Kernel& kernel : onchip::cuda::kernels()) {
    const std::string name = kernel.name;
    if (!name.starts_with(prefix) || name.ends_with("_full") || name.ends_with("_timeline")) {
      continue;
    }
    const std::string suffix = name.substr(prefix.size());
    // "d192_128" is no "d192" with a suffix.
    if (!suffix.empty() && (suffix[0] != '_' || (suffix[1] >= '0' && suffix[1] <= '9'))) continue;
    found.push_back(&kernel);
  }
  return found;
}

void print(const Cell& cell, const Contender& x, const onchip::Plan& chosen) {
  std::printf(
      "{\"dim\": %lld, \"dim_v\": %lld, \"causal\": %s, \"seqlen\": %lld, \"kernel\": \"%s\", "
      "\"planned\": %s, \"tile_q\": %d, \"tile_k\": %d, \"buffers\": [%d, %d, %d], "
      "\"warps\": %d, \"error\": %g, \"seconds\": [",
      static_cast<long long>(cell.dims.q), static_cast<long long>(cell.dims.v),
      cell.causal ? "true" : "false", static_cast<long long>(cell.length), x.kernel->name,
      chosen.info().kernel == x.kernel->name ? "true" : "false", x.kernel->tile_q, x.kernel->tile_k,
      x.kernel->buffers.q, x.kernel->buffers.k, x.kernel->buffers.v, x.kernel->threads / 32,
      x.error);
  for (std::size_t n = 0; n < x.samples.size(); ++n)
    std::printf("%s%.7g", n == 0 ? "" : ", ", x.samples[n]);
  std::printf("]}\n");
  std::fflush(stdout);
}

void measure(const Cell& cell, const Buffers& buffers, int rounds) {
  const onchip::Attention a = problem_of(cell, buffers);
  const onchip::Plan chosen = onchip::plan(a, onchip::Pass::forward);
  std::vector<Contender> contenders;
  for (const Kernel* kernel : kernels_for(cell.dims))
    contenders.push_back({kernel, plan_with(chosen, *kernel)});
  if (contenders.empty()) return;
  const std::vector<float> expected = result({nullptr, chosen}, a, buffers);
  for (Contender& x : contenders) {
    x.error = difference(result(x, a, buffers), expected);
    x.calls = std::clamp(static_cast<int>(kSampleSeconds / sample(x, a, buffers)), 1, 200);
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t n = 0; n < contenders.size(); ++n) {
      Contender& x = contenders[(n + static_cast<std::size_t>(round)) % contenders.size()];
      x.samples.push_back(sample(x, a, buffers));
    }
  }
  for (const Contender& x : contenders) print(cell, x, chosen);
}

}  // namespace

int main(int count, char** arguments) try {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 7;
  const Buffers buffers;
  for (const Dims& dims : kDims) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t length : kLengths) measure({dims, causal, length}, buffers, rounds);
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "onchip_tune: %s\n", error.what());
  return 1;
}
