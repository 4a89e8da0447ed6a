// SPDX-License-Identifier: Apache-2.0
// Float32 sums of dQ in the workspace, [heads_q][rows of q][dq_pitch(D)]. Within a row, groups of
// 16 columns are permuted, so that the four values that a thread of an mma.sync accumulator holds
// of a group travel together: columns 2q, 2q + 1, 2q + 8, 2q + 9 of thread q of four.
#pragma once

#include <cstdint>

#include "prims/reduce.cuh"

namespace onchip::cuda {

__host__ __device__ constexpr int dq_pitch(int dim) { return (dim + 15) / 16 * 16; }

/// Adds thread q's four values of a group, in any order with other threads'.
__device__ __forceinline__ void add_dq_group(float* group, int q, float a, float b, float c,
                                             float d) {
#if __CUDA_ARCH__ >= 900
  add_4(group + 4 * q, a, b, c, d);
#else  // one value at a time: those of the four threads lie side by side
  atomicAdd(group + q, a);
  atomicAdd(group + q + 4, b);
  atomicAdd(group + q + 8, c);
  atomicAdd(group + q + 12, d);
#endif
}

/// The four values of thread q of a group.
__device__ __forceinline__ float4 load_dq_group(const float* group, int q) {
#if __CUDA_ARCH__ >= 900
  return *reinterpret_cast<const float4*>(group + 4 * q);
#else
  return {group[q], group[q + 4], group[q + 8], group[q + 12]};
#endif
}

}  // namespace onchip::cuda
