// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace onchip::cuda {

/// 2^x by the special function unit; subnormal results become 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2 x of a normal x > 0, to 2^-22 of max(1, |log2 x|) by the special function unit. Infinity
/// and NaN give NaN.
__device__ __forceinline__ float log2_fast(float x) {
  const int bits = __float_as_int(x);
  const int exponent = (bits >> 23) - 127;
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__int_as_float(bits - (exponent << 23))));
  return fmaf(x, 0.0F, static_cast<float>(exponent) + y);
}

}  // namespace onchip::cuda
