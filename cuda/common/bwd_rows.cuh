// SPDX-License-Identifier: Apache-2.0
// Row by row work around the backward kernel: delta and lse before it, dQ after it.
#pragma once

#include <cstdint>

#include "common/dq_sum.cuh"
#include "common/row_work.cuh"
#include "host/kernel_params.hpp"
#include "prims/convert.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"

namespace onchip::cuda {

/// Threads that share a row in prepare_rows, 8 elements each, and in finish_dq, 4 each.
__host__ __device__ constexpr unsigned prepare_lanes(const host::Problem& p) {
  const int dim = static_cast<int>(p.dim > p.dim_v ? p.dim : p.dim_v);
  unsigned lanes = 2;
  while (lanes * 8 < static_cast<unsigned>(dim)) lanes *= 2;
  return lanes;
}
__host__ __device__ constexpr unsigned finish_lanes(const host::Problem& p) {
  unsigned lanes = 4;
  while (lanes * 4 < static_cast<unsigned>(p.dim)) lanes *= 2;
  return lanes;
}

/// Number of this thread's row where `lanes` threads share one; blockDim.x is a multiple of it.
__device__ __forceinline__ std::int64_t row_number(unsigned lanes) {
  return static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / lanes) + threadIdx.x / lanes;
}

template <class Element>
struct EightElements {
  Element x[8];
  __device__ __forceinline__ EightElements(const Element* from, bool aligned) {
    if (aligned) {
      constexpr int kWords = sizeof(x) / sizeof(uint4);
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        reinterpret_cast<uint4*>(x)[i] = reinterpret_cast<const uint4*>(from)[i];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = from[i];
    }
  }
};

/// delta = dout.out - dlse; lse2 = lse in base 2, +inf for rows that see nothing, so that their P
/// is 0; dq_sum = 0.
template <class Element>
__global__ void prepare_rows(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const unsigned lanes = prepare_lanes(p);
  const unsigned lane = threadIdx.x % lanes;
  const int e = static_cast<int>(lane) * 8;
  QueryRow at;
  const bool found = at.find(params, row_number(lanes));
  float lse = -kInfinity;
  if (found && at.counts()) lse = static_cast<const float*>(params.operands.lse)[at.offset(p.lse)];
  float sum = 0.0F;
  if (lse != -kInfinity && e < p.dim_v) {
    const auto* out = static_cast<const Element*>(params.operands.out) + at.offset(p.out);
    const auto* dout = static_cast<const Element*>(params.operands.dout) + at.offset(p.dout);
    const EightElements<Element> x(out + e, params.aligned);
    const EightElements<Element> y(dout + e, params.aligned);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(to_float(x.x[i]), to_float(y.x[i]), sum);
  }
  for (unsigned step = lanes / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(0xffffffffU, sum, step);
  if (!found) return;
  const std::int64_t to = at.head * p.total_q + at.row;
  if (lane == 0) {
    if (lse != -kInfinity && p.has_dlse)
      sum -= static_cast<const float*>(params.operands.dlse)[at.offset(p.dlse)];
    params.delta[to] = sum;
    params.lse2[to] = lse == -kInfinity ? kInfinity : lse * kLog2e;
  }
  const int pitch = dq_pitch(static_cast<int>(p.dim));
  if (params.dq_sum == nullptr || e >= pitch) return;
  auto* zeros = reinterpret_cast<float4*>(params.dq_sum + to * pitch + e);
  zeros[0] = zeros[1] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
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

/// dq = scale * dq_sum, in q's dtype and strides. A thread takes its four values of a group.
template <class Element>
__global__ void finish_dq(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const unsigned lanes = finish_lanes(p);
  const int dim = static_cast<int>(p.dim);
  const int group = static_cast<int>(threadIdx.x % lanes) / 4 * 16;
  const int q = static_cast<int>(threadIdx.x % 4);
  QueryRow at;
  if (!at.find(params, row_number(lanes)) || group >= dim) return;
  const float scale = static_cast<float>(p.scale);
  const float4 x =
      load_dq_group(params.dq_sum + (at.head * p.total_q + at.row) * dq_pitch(dim) + group, q);
  auto* to = static_cast<Element*>(params.operands.dq) + at.offset(p.dq) + group + 2 * q;
  const bool right = group + 8 < dim;  // D is a multiple of 8
  if (params.aligned) {
    *reinterpret_cast<std::uint32_t*>(to) = pack<Element>(x.x * scale, x.y * scale);
    if (right) *reinterpret_cast<std::uint32_t*>(to + 8) = pack<Element>(x.z * scale, x.w * scale);
    return;
  }
  to[0] = from_float<Element>(x.x * scale);
  to[1] = from_float<Element>(x.y * scale);
  if (!right) return;
  to[8] = from_float<Element>(x.z * scale);
  to[9] = from_float<Element>(x.w * scale);
}

}  // namespace onchip::cuda
