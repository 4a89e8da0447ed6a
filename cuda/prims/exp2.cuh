// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onchip::cuda {

/// 2^x by the special function unit; subnormal results become 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace onchip::cuda
