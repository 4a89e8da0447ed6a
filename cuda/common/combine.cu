// SPDX-License-Identifier: Apache-2.0
// Joins the partial results of split-KV; one warp a row.
#include "common/by_dtype.cuh"
#include "common/launchers.hpp"
#include "host/sequence.hpp"
#include "prims/convert.cuh"
#include "prims/math.cuh"

namespace onchip::cuda {
namespace {

constexpr int kMaxPairs = 256 / 64;  // pairs of columns of a lane

struct Combined {
  float x[kMaxPairs][2] = {};
  float lse = -kInfinity;
};

/// Weight of part `at`, exp(lse - base). A float32 lse of 100 is off by 4e-6, and so would be the
/// weight: with float32 inputs, what rounding took from it is there too.
__device__ float part_weight(const host::KernelParams& params, std::int64_t at, float base) {
  const float distance = params.partial_lse[at] - base;
  return expf(params.lse_rest == nullptr ? distance : distance + params.lse_rest[at]);
}

/// out = sum_n w_n partial_n / sum, w_n = exp(lse_n - top), with the sink in the sum.
__device__ Combined combine_row(const host::KernelParams& params, std::int64_t number, int head) {
  const host::Problem& p = params.problem;
  const std::int64_t rows = p.total_q * p.heads_q;
  const int splits = static_cast<int>(params.num_splits);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float top = -kInfinity;
  for (int n = lane; n < splits; n += 32) top = fmaxf(top, params.partial_lse[n * rows + number]);
  for (int step = 16; step > 0; step /= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, step));
  }
  float sink = -kInfinity;
  if (p.has_sinks && top > -kInfinity) {
    sink = static_cast<const float*>(params.operands.sinks)[head * p.sinks];
  }
  top = fmaxf(top, sink);
  const float base = top == -kInfinity ? 0.0F : top;
  float sum = expf(sink - base);
  Combined result;
  for (int first = 0; first < splits; first += 32) {
    const float mine =
        first + lane < splits ? part_weight(params, (first + lane) * rows + number, base) : 0.0F;
    for (int n = 0; n < min(32, splits - first); ++n) {
      const float weight = __shfl_sync(0xffffffffU, mine, n);
      if (weight == 0.0F) continue;
      sum += weight;
      const float* from = params.partial_out + ((first + n) * rows + number) * p.dim_v;
#pragma unroll
      for (int c = 0; c < kMaxPairs; ++c) {
        const int e = 64 * c + 2 * lane;
        if (e >= p.dim_v) break;
        const float2 pair = *reinterpret_cast<const float2*>(from + e);
        result.x[c][0] += weight * pair.x;
        result.x[c][1] += weight * pair.y;
      }
    }
  }
  if (sum == 0.0F) return result;
#pragma unroll
  for (auto& pair : result.x) pair[0] /= sum, pair[1] /= sum;
  result.lse = base + logf(sum);
  return result;
}

template <class Element>
__global__ __launch_bounds__(kBlockThreads) void combine_kernel(
    const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t number = warp_number(); number < p.total_q * p.heads_q;
       number += warp_count()) {
    const std::int64_t row = number / p.heads_q;
    const int head = static_cast<int>(number % p.heads_q);
    if (p.packed && (row < params.operands.cu_seqlens_q[0] ||
                     row >= params.operands.cu_seqlens_q[p.batch * p.cu_seqlens_q])) {
      continue;  // a row of no sequence has no partial results
    }
    const Combined result = combine_row(params, number, head);
    const std::int64_t b = p.packed ? 0 : row / p.seqlen_q;
    const std::int64_t i = p.packed ? row : row % p.seqlen_q;
    auto* to = static_cast<Element*>(params.operands.out) + host::offset_of(p.out, b, 0, i, head);
#pragma unroll
    for (int c = 0; c < kMaxPairs; ++c) {
      const int e = 64 * c + 2 * lane;
      if (e >= p.dim_v) break;
      to[e] = from_float<Element>(result.x[c][0]);
      to[e + 1] = from_float<Element>(result.x[c][1]);
    }
    if (lane == 0 && params.operands.lse != nullptr) {
      static_cast<float*>(params.operands.lse)[host::offset_of(p.lse, b, 0, i, head)] = result.lse;
    }
  }
}

}  // namespace

cudaError_t launch_combine(const host::KernelParams& params, cudaStream_t stream) {
  const host::Problem& p = params.problem;
  return by_dtype(p.dtype, [&](auto element) {
    return queue(combine_kernel<decltype(element)>, grid_of(p.total_q * p.heads_q, kBlockWarps),
                 kBlockThreads, stream, params);
  });
}

}  // namespace onchip::cuda
