// SPDX-License-Identifier: Apache-2.0
// merge_states: one warp a row.
#include <algorithm>

#include "common/by_dtype.cuh"
#include "common/launchers.hpp"
#include "host/sequence.hpp"
#include "prims/convert.cuh"
#include "prims/math.cuh"

namespace onchip::cuda {
namespace {

constexpr int kFewParts = 8;

template <class Element, int kCount>
__device__ void merge_row(const MergeArguments<kCount>& a, std::int64_t b, std::int64_t i,
                          std::int64_t h) {
  const host::MergeProblem& p = a.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto part_lse = [&](int n) {
    return static_cast<const float*>(
        a.part[n].lse)[host::offset_of(a.part[n].lse_strides, b, 0, i, h)];
  };
  float top = -kInfinity;
  for (int n = 0; n < a.parts; ++n) top = fmaxf(top, part_lse(n));
  const float base = top == -kInfinity ? 0.0F : top;
  float sum = 0.0F;
  for (int n = 0; n < a.parts; ++n) sum += expf(part_lse(n) - base);
  auto* to = static_cast<Element*>(a.out) + host::offset_of(p.out, b, 0, i, h);
  for (std::int64_t e = lane; e < p.dim_v; e += 32) {
    float value = 0.0F;
    for (int n = 0; n < a.parts; ++n) {
      const float weight = expf(part_lse(n) - base);
      if (weight == 0.0F) continue;  // a part that saw nothing may hold anything
      value += weight * to_float(static_cast<const Element*>(
                            a.part[n].out)[host::offset_of(a.part[n].out_strides, b, 0, i, h) + e]);
    }
    to[e] = from_float<Element>(sum == 0.0F ? 0.0F : value / sum);
  }
  if (lane == 0 && a.lse != nullptr) {
    static_cast<float*>(a.lse)[host::offset_of(p.lse, b, 0, i, h)] =
        sum == 0.0F ? -kInfinity : base + logf(sum);
  }
}

template <class Element, int kCount>
__global__ __launch_bounds__(kBlockThreads) void merge_kernel(
    const __grid_constant__ MergeArguments<kCount> arguments) {
  const host::MergeProblem& p = arguments.problem;
  for (std::int64_t number = warp_number(); number < p.batch * p.rows * p.heads;
       number += warp_count()) {
    const std::int64_t row = number / p.heads;
    merge_row<Element>(arguments, row / p.rows, row % p.rows, number % p.heads);
  }
}

template <int kCount>
cudaError_t launch(const MergeArguments<kCount>& a, cudaStream_t stream) {
  const host::MergeProblem& p = a.problem;
  return by_dtype(p.dtype, [&](auto element) {
    return queue(merge_kernel<decltype(element), kCount>,
                 grid_of(p.batch * p.rows * p.heads, kBlockWarps), kBlockThreads, stream, a);
  });
}

}  // namespace

cudaError_t launch_merge(const MergeArguments<kManyParts>& a, cudaStream_t stream) {
  if (a.parts > kFewParts) return launch(a, stream);
  MergeArguments<kFewParts> few{a.problem, a.out, a.lse, a.parts, {}};
  for (int n = 0; n < a.parts; ++n) {
    const auto& part = a.part[n];
    few.part[n] = {part.out, part.lse, part.out_strides, part.lse_strides};
  }
  return launch(few, stream);
}

}  // namespace onchip::cuda
