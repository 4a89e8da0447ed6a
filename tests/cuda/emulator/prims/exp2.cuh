// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

namespace onchip::cuda {

inline float exp2_fast(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0F : y;
}

inline float log2_fast(float x) { return std::fma(x, 0.0F, std::log2(x)); }

}  // namespace onchip::cuda
