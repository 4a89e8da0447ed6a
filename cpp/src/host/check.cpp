// SPDX-License-Identifier: Apache-2.0
#include "host/check.hpp"

#include <algorithm>
#include <array>

namespace onchip::host {
namespace {

/// "(2, 7)"; with `any`, kAnyExtent reads "any".
std::string tuple_text(const std::int64_t* values, std::size_t count, bool any = false) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < count; ++axis) {
    if (axis > 0) text += ", ";
    text += any && values[axis] == kAnyExtent ? "any" : std::to_string(values[axis]);
  }
  return text + (count == 1 ? ",)" : ")");
}

std::string strides_text(const TensorView& view) {
  return tuple_text(view.stride.data(), static_cast<std::size_t>(view.ndim));
}

std::string device_text(const Device& device) {
  if (device.type == DeviceType::cpu && device.index == 0) return "the CPU";
  return (device.type == DeviceType::cpu ? "CPU " : "CUDA device ") + std::to_string(device.index);
}

/// C callers pass any number.
std::string dtype_text(DType dtype) {
  const bool known = size_of(dtype) > 0 || dtype == DType::none;
  return known ? name_of(dtype) : std::to_string(static_cast<std::int32_t>(dtype));
}

/// The memory of a tensor with elements.
struct Footprint {
  std::int64_t lowest = 0, highest = 0;  // offsets of elements from `data`
  bool overlaps = false;                 // elements may share memory
  bool dense = true;                     // every element between lowest and highest is one of them
};

/// Sorted by stride, each axis must step over all that the axes before it cover: so it is in every
/// slice and transposition of an array.
Footprint footprint_of(const TensorView& view) {
  struct Axis {
    std::int64_t step, count;
  };
  std::array<Axis, kMaxDims> axes;
  std::size_t used = 0;
  Footprint f;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.ndim); ++axis) {
    const std::int64_t stride = view.stride[axis], count = view.shape[axis];
    if (count <= 1) continue;
    (stride < 0 ? f.lowest : f.highest) += stride * (count - 1);
    const Axis now{stride < 0 ? -stride : stride, count};
    std::size_t at = used++;
    for (; at > 0 && axes[at - 1].step > now.step; --at) axes[at] = axes[at - 1];
    axes[at] = now;
  }
  std::int64_t covered = 0;
  for (std::size_t n = 0; n < used; ++n) {
    f.overlaps = f.overlaps || axes[n].step <= covered;
    f.dense = f.dense && axes[n].step == covered + 1;
    covered += axes[n].step * (axes[n].count - 1);
  }
  return f;
}

bool holds(const Region& region, std::uintptr_t address) {
  return region.first <= address && address <= region.last;
}

/// Some element of `b` surely lies among those of `a`.
bool reaches_into(const Region& a, const Region& b) {
  return a.dense && (holds(a, b.data) || holds(a, b.first) || holds(a, b.last));
}

/// Offsets are 64 bits wide. A shape without elements counts as if it had one along each such axis:
/// its other extents are multiplied all the same.
bool fits_memory(const TensorView& view) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;
  const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(size_of(view.dtype), 1));
  std::uint64_t elements = 1, reach = 0;
  const bool strided = !has_no_elements(view);
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.ndim); ++axis) {
    const std::int64_t extent = std::max<std::int64_t>(view.shape[axis], 1);
    if (__builtin_mul_overflow(elements, extent, &elements) || elements > kMaxBytes) return false;
    if (!strided) continue;
    std::int64_t span = 0;
    if (__builtin_mul_overflow(view.stride[axis], extent - 1, &span)) return false;
    reach += span < 0 ? -static_cast<std::uint64_t>(span) : static_cast<std::uint64_t>(span);
    if (reach > kMaxBytes) return false;
  }
  return elements <= kMaxBytes / size && reach < kMaxBytes / size;
}

}  // namespace

std::string shape_text(const TensorView& view) {
  return tuple_text(view.shape.data(), static_cast<std::size_t>(std::max(view.ndim, 0)));
}

void check_shape(const char* name, const TensorView& view,
                 std::initializer_list<std::int64_t> expected, const char* meaning) {
  if (!view.given()) reject(name, "not given, expected " + std::string(meaning));
  bool fits = view.ndim == static_cast<std::int32_t>(expected.size());
  for (std::size_t axis = 0; fits && axis < expected.size(); ++axis) {
    const std::int64_t want = expected.begin()[axis];
    fits = view.shape[axis] >= 0 && (want == kAnyExtent || view.shape[axis] == want);
  }
  if (fits && fits_memory(view)) return;
  if (fits) {
    reject(name, "shape " + shape_text(view) + " with strides " + strides_text(view) +
                     " passes 2^62 bytes");
  }
  if (view.ndim < 0 || view.ndim > kMaxDims) {
    reject(name, "ndim is " + std::to_string(view.ndim) + ", expected " + meaning);
  }
  reject(name, "shape is " + shape_text(view) + ", expected " + meaning + " = " +
                   tuple_text(expected.begin(), expected.size(), true));
}

void check_dtype(const char* name, const TensorView& view, DType expected, const char* because) {
  if (view.dtype == expected) return;
  reject(name, "dtype is " + dtype_text(view.dtype) + ", expected " + name_of(expected) + " (" +
                   because + ")");
}

void check_floating(const char* name, const TensorView& view) {
  switch (view.dtype) {
    case DType::float64:
    case DType::float32:
    case DType::float16:
    case DType::bfloat16: return;
    default: break;
  }
  reject(name,
         "dtype is " + dtype_text(view.dtype) + ", expected float32, float16, bfloat16 or float64");
}

void check_device(const char* name, const TensorView& view, const Device& expected,
                  const char* like) {
  if (view.device == expected) return;
  reject(name, "lies on " + device_text(view.device) + ", expected " + device_text(expected) +
                   " as " + like);
}

void check_device_type(const char* name, const TensorView& view) {
  if (view.device.type == DeviceType::cpu || view.device.type == DeviceType::cuda) return;
  reject(name, "device type is " + std::to_string(static_cast<std::int32_t>(view.device.type)) +
                   ", expected 0 (CPU) or 1 (CUDA)");
}

void check_last_stride(const char* name, const TensorView& view) {
  const auto last = static_cast<std::size_t>(view.ndim - 1);
  const std::int64_t stride = view.stride[last];
  if (view.shape[last] <= 1 || stride == 1 || has_no_elements(view)) return;
  reject(name, "stride of the last axis is " + std::to_string(stride) +
                   ", expected 1 (other axes may have any stride)");
}

void check_writable(const char* name, const TensorView& view) {
  if (has_no_elements(view) || !footprint_of(view).overlaps) return;
  reject(name, "strides " + strides_text(view) + " let elements of shape " + shape_text(view) +
                   " share memory, expected an output that does not overlap itself");
}

void check_memory(const char* name, const TensorView& view) {
  if (!view.given() || has_no_elements(view)) return;
  if (view.data == nullptr) {
    reject(name, "data is null, expected memory for shape " + shape_text(view));
  }
  const auto size = static_cast<std::uintptr_t>(size_of(view.dtype));
  if (reinterpret_cast<std::uintptr_t>(view.data) % size == 0) return;
  reject(name, "data is not aligned to " + std::to_string(size) + " bytes, expected memory for " +
                   name_of(view.dtype));
}

Region region_of(const char* name, const TensorView& view) {
  if (!view.given() || has_no_elements(view)) return {};
  const Footprint f = footprint_of(view);
  const auto size = static_cast<std::uintptr_t>(size_of(view.dtype));
  const auto data = reinterpret_cast<std::uintptr_t>(view.data);
  return {name, data, data + static_cast<std::uintptr_t>(f.lowest) * size,
          data + static_cast<std::uintptr_t>(f.highest) * size + size - 1, f.dense};
}

void check_overlap(const Region& output, const Region& other) {
  if (output.data != other.data && !reaches_into(output, other) && !reaches_into(other, output)) {
    return;
  }
  reject(output.name,
         "shares memory with " + std::string(other.name) + ", expected memory of its own");
}

bool has_no_elements(const TensorView& view) {
  bool none = false;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.ndim); ++axis) {
    none = none || view.shape[axis] == 0;
  }
  return none;
}

std::int64_t stride_of(const TensorView& view, std::size_t axis) {
  return view.shape[axis] <= 1 || has_no_elements(view) ? 0 : view.stride[axis];
}

}  // namespace onchip::host
