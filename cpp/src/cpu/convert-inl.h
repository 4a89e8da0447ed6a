// SPDX-License-Identifier: Apache-2.0
// Rows of storage types to and from the compute type T (float, or double for float64).
#if defined(ONCHIP_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONCHIP_CPU_CONVERT_INL_H_
#undef ONCHIP_CPU_CONVERT_INL_H_
#else
#define ONCHIP_CPU_CONVERT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/half.hpp"
#include "hwy/highway.h"
#include "onchip/tensor.hpp"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// SSE has no conversion of halves: there the scalar form is as good.
#if HWY_TARGET <= HWY_AVX2 || !HWY_ARCH_X86
inline constexpr bool kVectorHalf = true;
#else
inline constexpr bool kVectorHalf = false;
#endif

HWY_INLINE void load_half_row(const std::uint16_t* from, std::ptrdiff_t count, float* to) {
  std::ptrdiff_t i = 0;
  if constexpr (kVectorHalf) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const auto lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
    for (; i + lanes <= count; i += lanes) {
      const auto* source = reinterpret_cast<const hwy::float16_t*>(from + i);
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, source)), d, to + i);
    }
  }
  for (; i < count; ++i) to[i] = half_to_float(from[i]);
}

HWY_INLINE void store_half_row(const float* from, std::ptrdiff_t count, std::uint16_t* to) {
  std::ptrdiff_t i = 0;
  if constexpr (kVectorHalf) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const auto lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, from + i)), half,
                 reinterpret_cast<hwy::float16_t*>(to + i));
    }
  }
  for (; i < count; ++i) to[i] = float_to_half(from[i]);
}

/// to[i] = element `offset + i` of `base`, for i < count.
template <class T>
HWY_NOINLINE void load_row(DType dtype, const void* base, std::int64_t offset, std::ptrdiff_t count,
                           T* HWY_RESTRICT to) {
  if constexpr (sizeof(T) == 8) {
    if (dtype == DType::float64) {
      std::memcpy(to, static_cast<const double*>(base) + offset,
                  static_cast<std::size_t>(count) * 8);
      return;
    }
    for (std::ptrdiff_t i = 0; i < count; ++i) to[i] = load_element<T>(dtype, base, offset + i);
  } else {
    switch (dtype) {
      case DType::float32:
        std::memcpy(to, static_cast<const float*>(base) + offset,
                    static_cast<std::size_t>(count) * 4);
        return;
      case DType::float16:
        load_half_row(static_cast<const std::uint16_t*>(base) + offset, count, to);
        return;
      case DType::bfloat16: {
        const auto* from = static_cast<const std::uint16_t*>(base) + offset;
        for (std::ptrdiff_t i = 0; i < count; ++i) to[i] = bfloat_to_float(from[i]);
        return;
      }
      default:
        for (std::ptrdiff_t i = 0; i < count; ++i) to[i] = load_element<T>(dtype, base, offset + i);
    }
  }
}

/// Element `offset + i` of `base` = from[i], rounded to nearest even.
template <class T>
HWY_NOINLINE void store_row(DType dtype, const T* HWY_RESTRICT from, std::ptrdiff_t count,
                            void* base, std::int64_t offset) {
  if constexpr (sizeof(T) == 4) {
    if (dtype == DType::float32) {
      std::memcpy(static_cast<float*>(base) + offset, from, static_cast<std::size_t>(count) * 4);
      return;
    }
    if (dtype == DType::float16) {
      store_half_row(from, count, static_cast<std::uint16_t*>(base) + offset);
      return;
    }
    if (dtype == DType::bfloat16) {
      auto* to = static_cast<std::uint16_t*>(base) + offset;
      for (std::ptrdiff_t i = 0; i < count; ++i) to[i] = float_to_bfloat(from[i]);
      return;
    }
  }
  for (std::ptrdiff_t i = 0; i < count; ++i) store_element(dtype, base, offset + i, from[i]);
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
