// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "prims/exp2.cuh"

namespace onchip::cuda {

inline constexpr float kLog2e = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;
inline constexpr float kInfinity = __builtin_huge_valf();

/// Over the four lanes that share an accumulator row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

}  // namespace onchip::cuda
