// SPDX-License-Identifier: Apache-2.0
#include "host/check.hpp"

#include <algorithm>

namespace onchip::host {
namespace {

std::string extents_text(const std::int64_t* extents, std::size_t count) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < count; ++axis) {
    if (axis > 0) text += ", ";
    text += extents[axis] == kAny ? "any" : std::to_string(extents[axis]);
  }
  return text + (count == 1 ? ",)" : ")");
}

std::string device_text(const Device& device) {
  return device.type == DeviceType::cpu ? "the CPU" : "CUDA device " + std::to_string(device.index);
}

/// Whether there are no elements, whose strides then mean nothing (libraries write what they like).
bool empty(const TensorView& view) {
  const auto end = view.shape.begin() + view.ndim;
  return std::find(view.shape.begin(), end, 0) != end;
}

}  // namespace

std::string shape_text(const TensorView& view) {
  return extents_text(view.shape.data(), static_cast<std::size_t>(std::max(view.ndim, 0)));
}

void check_shape(const char* name, const TensorView& view,
                 std::initializer_list<std::int64_t> expected, const char* meaning) {
  if (!view.given()) reject(name, "not given, expected " + std::string(meaning));
  bool fits = view.ndim == static_cast<std::int32_t>(expected.size());
  for (std::size_t axis = 0; fits && axis < expected.size(); ++axis) {
    const std::int64_t want = expected.begin()[axis];
    fits = view.shape[axis] >= 0 && (want == kAny || view.shape[axis] == want);
  }
  if (fits) return;
  if (view.ndim < 0 || view.ndim > kMaxDims) {
    reject(name, "ndim is " + std::to_string(view.ndim) + ", expected " + meaning);
  }
  reject(name, "shape is " + shape_text(view) + ", expected " + meaning + " = " +
                   extents_text(expected.begin(), expected.size()));
}

void check_dtype(const char* name, const TensorView& view, DType expected, const char* because) {
  if (view.dtype == expected) return;
  reject(name, "dtype is " + std::string(name_of(view.dtype)) + ", expected " + name_of(expected) +
                   " (" + because + ")");
}

void check_device(const char* name, const TensorView& view, const Device& expected) {
  if (view.device == expected) return;
  reject(name,
         "lies on " + device_text(view.device) + ", expected " + device_text(expected) + " as q");
}

void check_last_stride(const char* name, const TensorView& view) {
  const auto last = static_cast<std::size_t>(view.ndim - 1);
  if (view.shape[last] <= 1 || view.stride[last] == 1 || empty(view)) return;
  reject(name, "stride of the last axis is " + std::to_string(view.stride[last]) +
                   ", expected 1 (other axes may have any stride)");
}

void check_writable(const char* name, const TensorView& view) {
  if (empty(view)) return;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.ndim); ++axis) {
    if (view.shape[axis] > 1 && view.stride[axis] == 0) {
      reject(name, "stride of axis " + std::to_string(axis) +
                       " is 0, expected an output whose elements do not share memory");
    }
  }
}

void check_memory(const char* name, const TensorView& view) {
  if (!view.given() || view.data != nullptr || empty(view)) return;
  reject(name, "data is null, expected memory for shape " + shape_text(view));
}

}  // namespace onchip::host
