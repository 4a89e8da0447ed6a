// SPDX-License-Identifier: Apache-2.0
// Scalar conversions of the 16-bit types, round to nearest even, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "onchip/tensor.hpp"

namespace onchip::cpu {

inline float bfloat_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bfloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
  if ((bits & 0x7c00U) == 0x7c00U) return std::bit_cast<float>(sign | magnitude | 0x7f800000U);
  // The exponent is rebiased by a multiplication, which also normalises subnormals.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

inline std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7e00U;
  if (magnitude >= 0x477ff000U) return sign | 0x7c00U;  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 1/2 puts the rounding at the last bit of a half.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

/// Element `index` of `base`, which holds a floating type.
template <class T>
T load_element(DType dtype, const void* base, std::int64_t index) {
  switch (dtype) {
    case DType::float64: return static_cast<T>(static_cast<const double*>(base)[index]);
    case DType::float16: return half_to_float(static_cast<const std::uint16_t*>(base)[index]);
    case DType::bfloat16: return bfloat_to_float(static_cast<const std::uint16_t*>(base)[index]);
    default: return static_cast<T>(static_cast<const float*>(base)[index]);
  }
}

template <class T>
void store_element(DType dtype, void* base, std::int64_t index, T value) {
  switch (dtype) {
    case DType::float64: static_cast<double*>(base)[index] = value; break;
    case DType::float16:
      static_cast<std::uint16_t*>(base)[index] = float_to_half(static_cast<float>(value));
      break;
    case DType::bfloat16:
      static_cast<std::uint16_t*>(base)[index] = float_to_bfloat(static_cast<float>(value));
      break;
    default: static_cast<float*>(base)[index] = static_cast<float>(value);
  }
}

}  // namespace onchip::cpu
