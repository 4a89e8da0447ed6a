// SPDX-License-Identifier: Apache-2.0
// Row by row work around the backward kernel: delta and lse before it, dQ after it. One warp a row.
#pragma once

#include <cstdint>

#include "common/row_work.cuh"
#include "host/kernel_params.hpp"
#include "prims/convert.cuh"
#include "prims/math.cuh"

namespace onchip::cuda {

/// delta = dout.out - dlse; lse2 = lse in base 2, +inf for rows that see nothing, so that their P
/// is 0; dq_sum = 0.
template <class Element>
__global__ void prepare_rows(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  QueryRow at;
  if (!at.find(params)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t to = at.head * p.total_q + at.row;
  float lse = -kInfinity;
  float sum = 0.0F;
  if (at.counts()) lse = static_cast<const float*>(params.operands.lse)[at.offset(p, p.lse)];
  if (lse != -kInfinity) {
    const auto* out = static_cast<const Element*>(params.operands.out) + at.offset(p, p.out);
    const auto* dout = static_cast<const Element*>(params.operands.dout) + at.offset(p, p.dout);
    for (int e = lane; e < p.dim_v; e += 32) sum += to_float(out[e]) * to_float(dout[e]);
    sum = warp_sum(sum);
    if (p.has_dlse) sum -= static_cast<const float*>(params.operands.dlse)[at.offset(p, p.dlse)];
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
  if (!at.find(params)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float scale = static_cast<float>(p.scale);
  const float* from = params.dq_sum + (at.head * p.total_q + at.row) * p.dim;
  auto* to = static_cast<Element*>(params.operands.dq) + at.offset(p, p.dq);
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
