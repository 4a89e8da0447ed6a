// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix products (PTX wgmma, sm_90a): c[64 x N] += a[64 x 16] . b[16 x N] in float32, b
// in shared memory, a in shared memory (ss) or in registers (rs). Asynchronous: fence before the
// first product after a register was touched, commit, and wait before c, a or b are touched again.
//
// Accumulator i of lane l, warp w of the group: row 16 w + l / 4 + 8 (i / 2 % 2), column
// 8 (i / 4) + 2 (l % 4) + i % 2: pairs of m16n8 tiles, so that packed accumulators are A operands.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "prims/fragment.cuh"

namespace onchip::cuda {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The bits of an accumulator, read in place: the compiler would take them before the wait.
__device__ __forceinline__ int accumulator_bits(float x) {
  int bits;
  asm volatile("mov.b32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

/// Operand in shared memory, rows of 128 bytes with the 128-byte swizzle, at a multiple of 1024.
/// `leading` is the distance of panels of 64 columns where columns run along N, else unused.
__device__ __forceinline__ std::uint64_t wgmma_operand(std::uint32_t address,
                                                       std::uint32_t leading) {
  constexpr std::uint64_t kGroupBytes = 1024;  // of 8 rows
  constexpr std::uint64_t kSwizzle128 = 1;
  return (address >> 4 & 0x3fffU) | static_cast<std::uint64_t>(leading >> 4) << 16 |
         kGroupBytes >> 4 << 32 | kSwizzle128 << 62;
}

/// The operand `bytes` further on in its tile. One addition: built anew, it would cost five
/// instructions in a row before each product.
__device__ __forceinline__ std::uint64_t wgmma_step(std::uint64_t operand, std::uint32_t bytes) {
  const std::uint64_t high = operand >> 32;
  return high << 32 | (static_cast<std::uint32_t>(operand) + (bytes >> 4));
}

// Operand lists of the instructions below.
#define ONCHIP_C8(c, i)                                                                         \
  "+f"((c)[i]), "+f"((c)[(i) + 1]), "+f"((c)[(i) + 2]), "+f"((c)[(i) + 3]), "+f"((c)[(i) + 4]), \
      "+f"((c)[(i) + 5]), "+f"((c)[(i) + 6]), "+f"((c)[(i) + 7])
#define ONCHIP_C16(c, i) ONCHIP_C8(c, i), ONCHIP_C8(c, (i) + 8)
#define ONCHIP_C32(c, i) ONCHIP_C16(c, i), ONCHIP_C16(c, (i) + 16)
#define ONCHIP_C48(c, i) ONCHIP_C32(c, i), ONCHIP_C16(c, (i) + 32)
#define ONCHIP_C64(c, i) ONCHIP_C32(c, i), ONCHIP_C32(c, (i) + 32)
#define ONCHIP_C96(c, i) ONCHIP_C64(c, i), ONCHIP_C32(c, (i) + 64)
#define ONCHIP_C128(c, i) ONCHIP_C64(c, i), ONCHIP_C64(c, (i) + 64)
#define ONCHIP_PLACES_32                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ONCHIP_PLACES_40 \
  ONCHIP_PLACES_32       \
  ", "                   \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define ONCHIP_PLACES_48 \
  ONCHIP_PLACES_40       \
  ", "                   \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define ONCHIP_PLACES_64 \
  ONCHIP_PLACES_48       \
  ", "                   \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ONCHIP_PLACES_88                                                             \
  ONCHIP_PLACES_64                                                                   \
  ", "                                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87"
#define ONCHIP_PLACES_96 \
  ONCHIP_PLACES_88       \
  ", "                   \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define ONCHIP_PLACES_128                                                            \
  ONCHIP_PLACES_96                                                                   \
  ", "                                                                               \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
  "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "   \
  "%123, %124, %125, %126, %127"

template <class Element>
inline constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<__half> = true;

// a: (rows, depth) both K-major. p0, p1... are the places after the accumulators.
#define ONCHIP_WGMMA_SS(n, count, type, p0, p1, p2)                                              \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #p2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k16.f32." type "." type " {" ONCHIP_PLACES_##count "}, %" #p0 ", %" #p1          \
                                                                   ", p, 1, 1, 0, 0;}"           \
               : ONCHIP_C##count(c, 0)                                                           \
               : "l"(a), "l"(b), "r"(accumulate))
#define ONCHIP_WGMMA_RS(n, count, type, p0, p1, p2, p3, p4, p5, p6)                              \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" #p5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k16.f32." type "." type " {" ONCHIP_PLACES_##count                               \
               "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p6 ";}"      \
               : ONCHIP_C##count(c, 0)                                                           \
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "r"(accumulate),    \
                 "n"(kAlongN))

// Both element types, one function for each N: the accumulators' number names it. kAlongN: the rows
// of b in memory run along N, not along the depth.
#define ONCHIP_WGMMA(n, count, p0, p1, p2, p3, p4, p5, p6)                                        \
  template <class Element>                                                                        \
  __device__ __forceinline__ void wgmma_ss(float (&c)[count], std::uint64_t a, std::uint64_t b,   \
                                           int accumulate) {                                      \
    if constexpr (kIsHalf<Element>) {                                                             \
      ONCHIP_WGMMA_SS(n, count, "f16", p0, p1, p2);                                               \
    } else {                                                                                      \
      ONCHIP_WGMMA_SS(n, count, "bf16", p0, p1, p2);                                              \
    }                                                                                             \
  }                                                                                               \
  template <class Element, bool kAlongN>                                                          \
  __device__ __forceinline__ void wgmma_rs(float (&c)[count], const Fragment& a, std::uint64_t b, \
                                           int accumulate) {                                      \
    if constexpr (kIsHalf<Element>) {                                                             \
      ONCHIP_WGMMA_RS(n, count, "f16", p0, p1, p2, p3, p4, p5, p6);                               \
    } else {                                                                                      \
      ONCHIP_WGMMA_RS(n, count, "bf16", p0, p1, p2, p3, p4, p5, p6);                              \
    }                                                                                             \
  }
ONCHIP_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
ONCHIP_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
ONCHIP_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
ONCHIP_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
ONCHIP_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef ONCHIP_C8
#undef ONCHIP_C16
#undef ONCHIP_C32
#undef ONCHIP_C48
#undef ONCHIP_C64
#undef ONCHIP_C96
#undef ONCHIP_C128
#undef ONCHIP_PLACES_32
#undef ONCHIP_PLACES_40
#undef ONCHIP_PLACES_48
#undef ONCHIP_PLACES_64
#undef ONCHIP_PLACES_88
#undef ONCHIP_PLACES_96
#undef ONCHIP_PLACES_128
#undef ONCHIP_WGMMA_SS
#undef ONCHIP_WGMMA_RS
#undef ONCHIP_WGMMA

}  // namespace onchip::cuda
