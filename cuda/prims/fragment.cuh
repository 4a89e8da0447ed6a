// SPDX-License-Identifier: Apache-2.0
// What a lane holds of the operands of a warp-wide matrix product.
//
// Accumulator of a 16x8 tile: lane l holds c[0], c[1] at row l/4, columns 2(l%4) + {0, 1}, and
// c[2], c[3] at row l/4 + 8. Two neighbouring accumulators, packed to 16 bits, are the A operand of
// the next product: no data moves between lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace onchip::cuda {

struct Fragment {
  std::uint32_t x[4];
};

/// Two floats as two 16-bit elements, `low` in the low half.
template <class Element>
__device__ __forceinline__ std::uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

/// The two elements of a pair.
template <class Element>
__device__ __forceinline__ float2 unpack(std::uint32_t pair);

template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(std::uint32_t pair) {
  // bfloat16 is the upper half of a float32. __bfloat1622float2 takes three instructions a value.
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
}

template <>
__device__ __forceinline__ float2 unpack<__half>(std::uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

/// Both halves: sum + 0 x pair, which is NaN as soon as one of `pair` is not finite.
template <class Element>
__device__ __forceinline__ std::uint32_t add_zero_times(std::uint32_t pair, std::uint32_t sum);

template <>
__device__ __forceinline__ std::uint32_t add_zero_times<__nv_bfloat16>(std::uint32_t pair,
                                                                       std::uint32_t sum) {
  const __nv_bfloat162 result =
      __hfma2(reinterpret_cast<const __nv_bfloat162&>(pair), __nv_bfloat162{},
              reinterpret_cast<const __nv_bfloat162&>(sum));
  return reinterpret_cast<const std::uint32_t&>(result);
}

template <>
__device__ __forceinline__ std::uint32_t add_zero_times<__half>(std::uint32_t pair,
                                                                std::uint32_t sum) {
  const __half2 result = __hfma2(reinterpret_cast<const __half2&>(pair), __half2{},
                                 reinterpret_cast<const __half2&>(sum));
  return reinterpret_cast<const std::uint32_t&>(result);
}

/// Accumulators of tiles 2k and 2k + 1 as the A operand of depth step k.
template <class Element>
__device__ __forceinline__ Fragment as_operand(const float (&left)[4], const float (&right)[4]) {
  return {pack<Element>(left[0], left[1]), pack<Element>(left[2], left[3]),
          pack<Element>(right[0], right[1]), pack<Element>(right[2], right[3])};
}

}  // namespace onchip::cuda
