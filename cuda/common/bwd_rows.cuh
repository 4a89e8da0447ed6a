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
  const auto* out = static_cast<const Element*>(params.operands.out) + at.offset(p.out);
  const auto* dout = static_cast<const Element*>(params.operands.dout) + at.offset(p.dout);
  float sum = 0.0F;
  for (int e = lane; e < p.dim_v; e += 32) sum += to_float(out[e]) * to_float(dout[e]);
  sum = warp_sum(sum);
  const std::int64_t to = at.head * p.total_q + at.row;
  if (lane == 0) {
    if (p.has_dlse) sum -= static_cast<const float*>(params.operands.dlse)[at.offset(p.dlse)];
    const float lse = static_cast<const float*>(params.operands.lse)[at.offset(p.lse)];
    params.delta[to] = lse == -kInfinity ? 0.0F : sum;
    params.lse2[to] = lse == -kInfinity ? kInfinity : lse * kLog2e;
  }
  if (params.dq_sum == nullptr) return;
  for (int e = lane; e < p.dim; e += 32) params.dq_sum[to * p.dim + e] = 0.0F;
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
