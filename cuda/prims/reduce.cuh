// SPDX-License-Identifier: Apache-2.0
// Additions to device memory that return nothing.
#pragma once

namespace onchip::cuda {

#if __CUDA_ARCH__ >= 900
/// Adds to four floats at a multiple of 16 bytes, each on its own (PTX red.v4, sm_90).
__device__ __forceinline__ void add_4(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}
#endif

}  // namespace onchip::cuda
