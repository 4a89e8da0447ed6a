// SPDX-License-Identifier: Apache-2.0
// Row by row work around the backward kernel: delta and lse before it, dQ after it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dq_sum.cuh"
#include "common/row_work.cuh"
#include "host/kernel_params.hpp"
#include "prims/convert.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"

namespace onchip::cuda {

/// Threads that share a row in prepare_rows and in finish_dq, 8 elements each.
__host__ __device__ constexpr unsigned prepare_lanes(const host::Problem& p) {
  const int dim = static_cast<int>(p.dim > p.dim_v ? p.dim : p.dim_v);
  unsigned lanes = 2;
  while (lanes * 8 < static_cast<unsigned>(dim)) lanes *= 2;
  return lanes;
}
__host__ __device__ constexpr unsigned finish_lanes(const host::Problem& p) {
  unsigned lanes = 4;
  while (lanes * 8 < static_cast<unsigned>(p.dim)) lanes *= 2;
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
/// is 0; dq_sum = 0. With float32 inputs lse2 is lse itself, for a product by log2(e) would round.
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
    constexpr bool kNatural = std::is_same_v<Element, float>;
    params.lse2[to] = lse == -kInfinity ? kInfinity : kNatural ? lse : lse * kLog2e;
    if (kNatural) params.lse_rest[to] = 0.0F;
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
  const bool natural = p.dtype == DType::float32;
  const float logit = static_cast<const float*>(params.operands.sinks)[head * p.sinks];
  double sum = 0.0;
  for (std::int64_t row = threadIdx.x; row < p.total_q; row += blockDim.x) {
    const std::int64_t at = head * p.total_q + row;
    const float lse = params.lse2[at];
    if (lse == kInfinity) continue;
    const float weight =
        natural ? expf((logit - lse) - params.lse_rest[at]) : exp2f(kLog2e * logit - lse);
    sum -= static_cast<double>(weight * params.delta[at]);
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

/// Thread q's four values, times `factor`, to their group of 16; `right`: its last 8 are there too.
template <class Element>
__device__ __forceinline__ void store_dq_group(Element* group, int q, const float4& x, float factor,
                                               bool right, bool aligned) {
  Element* to = group + 2 * q;
  if (aligned) {
    *reinterpret_cast<std::uint32_t*>(to) = pack<Element>(x.x * factor, x.y * factor);
    if (right)
      *reinterpret_cast<std::uint32_t*>(to + 8) = pack<Element>(x.z * factor, x.w * factor);
    return;
  }
  to[0] = from_float<Element>(x.x * factor);
  to[1] = from_float<Element>(x.y * factor);
  if (!right) return;
  to[8] = from_float<Element>(x.z * factor);
  to[9] = from_float<Element>(x.w * factor);
}

/// dq = scale * dq_sum, in q's dtype and strides. A thread takes its four values of two groups, so
/// that two loads are on their way.
template <class Element>
__global__ void finish_dq(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const unsigned lanes = finish_lanes(p);
  const int dim = static_cast<int>(p.dim);
  const int first = static_cast<int>(threadIdx.x % lanes) / 4 * 16;
  const int second = first + static_cast<int>(lanes) * 4;
  const int q = static_cast<int>(threadIdx.x % 4);
  QueryRow at;
  if (!at.find(params, row_number(lanes)) || first >= dim) return;
  const float* sums = params.dq_sum + (at.head * p.total_q + at.row) * dq_pitch(dim);
  const float4 x = load_dq_group(sums + first, q);
  const float4 y = second < dim ? load_dq_group(sums + second, q) : float4{};
  const auto scale = static_cast<float>(p.scale);
  auto* row = static_cast<Element*>(params.operands.dq) + at.offset(p.dq);
  // A group's right half may lie past D, which is a multiple of 8.
  store_dq_group(row + first, q, x, scale, first + 8 < dim, params.aligned);
  if (second < dim) store_dq_group(row + second, q, y, scale, second + 8 < dim, params.aligned);
}

}  // namespace onchip::cuda
