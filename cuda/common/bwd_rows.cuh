// SPDX-License-Identifier: Apache-2.0
// Row by row work around the backward kernel: delta and lse before it, dQ after it. One warp a row.
#pragma once

#include <cstdint>

#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "prims/convert.cuh"
#include "prims/math.cuh"

namespace onchip::cuda {

inline constexpr int kRowsPerBlock = 8;  // warps of a block

/// Row and head of this warp, among the rows of q of all sequences; false past the last.
struct QueryRow {
  std::int64_t row, batch, position;
  int head;

  /// Whether the row belongs to a sequence and lies within seqused_q.
  __device__ __forceinline__ bool counts(const host::KernelParams& params) const {
    const host::Problem& p = params.problem;
    if (!p.packed) return position < host::sequence_at(p, params.operands, batch).q_len;
    std::int64_t low = 0;
    std::int64_t high = p.batch;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (params.operands.cu_seqlens_q[middle * p.cu_seqlens_q] <= row ? low : high) = middle;
    }
    if (p.batch == 0) return false;
    const host::Sequence s = host::sequence_at(p, params.operands, low);
    return row >= s.q_start && row < s.q_start + s.q_len;
  }
  __device__ __forceinline__ bool find(const host::Problem& p) {
    const std::int64_t number =
        static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
    if (number >= p.total_q * p.heads_q) return false;
    row = number / p.heads_q;
    head = static_cast<int>(number % p.heads_q);
    batch = p.packed ? 0 : row / p.seqlen_q;
    position = p.packed ? row : row % p.seqlen_q;
    return true;
  }
  __device__ __forceinline__ std::int64_t offset(const host::Strides& strides) const {
    return host::offset_of(strides, batch, 0, position, head);
  }
};

/// delta = dout.out - dlse; lse2 = lse in base 2, +inf for rows that see nothing, so that their P
/// is 0; dq_sum = 0.
template <class Element>
__global__ void prepare_rows(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  QueryRow at;
  if (!at.find(p)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t to = at.head * p.total_q + at.row;
  float lse = -kInfinity;
  float sum = 0.0F;
  if (at.counts(params)) lse = static_cast<const float*>(params.operands.lse)[at.offset(p.lse)];
  if (lse != -kInfinity) {
    const auto* out = static_cast<const Element*>(params.operands.out) + at.offset(p.out);
    const auto* dout = static_cast<const Element*>(params.operands.dout) + at.offset(p.dout);
    for (int e = lane; e < p.dim_v; e += 32) sum += to_float(out[e]) * to_float(dout[e]);
    sum = warp_sum(sum);
    if (p.has_dlse) sum -= static_cast<const float*>(params.operands.dlse)[at.offset(p.dlse)];
  }
  if (lane == 0) {
    params.delta[to] = sum;
    params.lse2[to] = lse == -kInfinity ? kInfinity : lse * kLog2e;
  }
  if (params.dq_sum == nullptr) return;
  for (int e = lane; e < p.dim; e += 32) params.dq_sum[to * p.dim + e] = 0.0F;
}

/// dsinks[h] = - sum over rows of exp(sink - lse) delta, in one order; a block a head.
inline __global__ void sink_gradient(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const auto head = static_cast<std::int64_t>(blockIdx.x);
  const float sink = kLog2e * static_cast<const float*>(params.operands.sinks)[head * p.sinks];
  double sum = 0.0;
  for (std::int64_t row = threadIdx.x; row < p.total_q; row += blockDim.x) {
    const std::int64_t at = head * p.total_q + row;
    if (params.lse2[at] != kInfinity)
      sum -= static_cast<double>(exp2f(sink - params.lse2[at]) * params.delta[at]);
  }
  __shared__ double sums[256];
  sums[threadIdx.x] = sum;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0)
    static_cast<float*>(params.operands.dsinks)[head * p.dsinks] = static_cast<float>(sums[0]);
}

/// dq = scale * dq_sum, in q's dtype and strides.
template <class Element>
__global__ void finish_dq(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  QueryRow at;
  if (!at.find(p)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float scale = static_cast<float>(p.scale);
  const float* from = params.dq_sum + (at.head * p.total_q + at.row) * p.dim;
  auto* to = static_cast<Element*>(params.operands.dq) + at.offset(p.dq);
  if (params.aligned) {
    for (int e = 2 * lane; e < p.dim; e += 64) {
      const float2 pair = *reinterpret_cast<const float2*>(from + e);
      *reinterpret_cast<std::uint32_t*>(to + e) = pack<Element>(pair.x * scale, pair.y * scale);
    }
  } else {
    for (int e = lane; e < p.dim; e += 32) to[e] = from_float<Element>(from[e] * scale);
  }
}

}  // namespace onchip::cuda
