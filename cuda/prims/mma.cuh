// SPDX-License-Identifier: Apache-2.0
// Warp-wide matrix products and the loads that feed them (mma.sync m16n8k16, ldmatrix, sm_80).
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

__device__ __forceinline__ Fragment load_matrix(std::uint32_t address) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
               : "r"(address));
  return f;
}

__device__ __forceinline__ Fragment load_matrix_transposed(std::uint32_t address) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
               : "r"(address));
  return f;
}

/// c += a . b for one 16x8 tile and 16 steps of depth, in float32.
template <class Element>
__device__ __forceinline__ void mma(float (&c)[4], const Fragment& a, std::uint32_t b0,
                                    std::uint32_t b1);

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&c)[4], const Fragment& a,
                                                   std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<__half>(float (&c)[4], const Fragment& a, std::uint32_t b0,
                                            std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b0), "r"(b1));
}

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
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
}

template <>
__device__ __forceinline__ float2 unpack<__half>(std::uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

/// Accumulators of tiles 2k and 2k + 1 as the A operand of depth step k.
template <class Element>
__device__ __forceinline__ Fragment as_operand(const float (&left)[4], const float (&right)[4]) {
  return {pack<Element>(left[0], left[1]), pack<Element>(left[2], left[3]),
          pack<Element>(right[0], right[1]), pack<Element>(right[2], right[3])};
}

}  // namespace onchip::cuda
