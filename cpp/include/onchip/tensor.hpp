// SPDX-License-Identifier: Apache-2.0
// Descriptions of memory that the caller owns. Nothing here allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace onchip {

/// Element types. The values are part of the ABI (`onchip_dtype` in onchip.h).
enum class DType : std::int32_t {
  none = 0,
  float64 = 1,
  float32 = 2,
  float16 = 3,
  bfloat16 = 4,
  int32 = 5,
  uint8 = 6,
};

/// Bytes of one element; 0 for `DType::none`.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float64: return 8;
    case DType::float32:
    case DType::int32: return 4;
    case DType::float16:
    case DType::bfloat16: return 2;
    case DType::uint8: return 1;
    case DType::none: break;
  }
  return 0;
}

/// The type's name as users write it ("float16").
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::float64: return "float64";
    case DType::float32: return "float32";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::int32: return "int32";
    case DType::uint8: return "uint8";
    case DType::none: break;
  }
  return "none";
}

/// Where memory lives. The values are part of the ABI (`onchip_device_type` in onchip.h).
enum class DeviceType : std::int32_t { cpu = 0, cuda = 1 };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

inline constexpr int kMaxDims = 5;

/// A strided view of the caller's memory. `ndim == 0` means "not given"; a given tensor with no
/// elements may have null data, and data is not looked at while planning.
/// Strides count elements, may be zero or negative where only read, and have no size limit.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::none;
  Device device;
  std::int32_t ndim = 0;
  std::array<std::int64_t, kMaxDims> shape{};
  std::array<std::int64_t, kMaxDims> stride{};

  [[nodiscard]] constexpr bool given() const { return ndim != 0; }
};

/// A view of densely packed row-major memory.
constexpr TensorView make_tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                                 Device device = {}) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  for (std::int64_t extent : shape) view.shape[static_cast<std::size_t>(view.ndim++)] = extent;
  std::int64_t stride = 1;
  for (int axis = view.ndim - 1; axis >= 0; --axis) {
    view.stride[static_cast<std::size_t>(axis)] = stride;
    stride *= view.shape[static_cast<std::size_t>(axis)];
  }
  return view;
}

/// The caller's stream as an opaque pointer (a `cudaStream_t`); null on the CPU, where a call
/// returns when its work is done.
struct Stream {
  void* handle = nullptr;
};

}  // namespace onchip
