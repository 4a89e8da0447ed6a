// SPDX-License-Identifier: Apache-2.0
// Small checks that name the argument when they fail. Nothing here allocates unless it fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "onchip/status.hpp"
#include "onchip/tensor.hpp"

namespace onchip::host {

[[noreturn]] inline void reject(const char* name, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, std::string(name) + ": " + what);
}

[[noreturn]] inline void refuse(const char* name, const std::string& what) {
  throw Error(ErrorCode::unsupported, std::string(name) + ": " + what);
}

/// "(2, 7, 4, 64)"
std::string shape_text(const TensorView& view);

/// Extent that stands for "any".
inline constexpr std::int64_t kAnyExtent = -1;

/// The tensor must be given, have these extents (kAnyExtent: any), none of them negative, and fit
/// into 62 bits of bytes.
void check_shape(const char* name, const TensorView& view,
                 std::initializer_list<std::int64_t> expected, const char* meaning);

/// The tensor's dtype must be the one that `because` explains.
void check_dtype(const char* name, const TensorView& view, DType expected, const char* because);

void check_device(const char* name, const TensorView& view, const Device& expected,
                  const char* like = "q");

/// The device must be of a type that exists: C callers pass any number.
void check_device_type(const char* name, const TensorView& view);

/// The last axis must be dense: kernels read rows as whole vectors.
void check_last_stride(const char* name, const TensorView& view);

/// The tensor's dtype must be float32, float16, bfloat16 or float64.
void check_floating(const char* name, const TensorView& view);

/// No two elements of a written tensor may share memory.
void check_writable(const char* name, const TensorView& view);

/// A tensor with elements must have memory, aligned to its element.
void check_memory(const char* name, const TensorView& view);

/// The bytes of a tensor; `last` before `first` where it has no elements.
struct Region {
  const char* name = nullptr;
  std::uintptr_t data = 0, first = 1, last = 0;  // addresses; `last` is its last byte
  bool dense = false;                            // every byte between first and last is its own
};

Region region_of(const char* name, const TensorView& view);

/// Refuses regions that surely share memory: they begin at one address, or one is dense and the
/// other reaches into it. Strided tensors between each other's elements are fine, as slices of one
/// array are.
void check_overlap(const Region& output, const Region& other);

/// `output` must not share memory with `other`.
inline void check_apart(const Region& output, const Region& other) {
  if (output.first <= other.last && other.first <= output.last) check_overlap(output, other);
}

/// Whether there are no elements: strides then mean nothing (libraries write what they like).
bool has_no_elements(const TensorView& view);

/// The stride of an axis as it counts: 0 where there is no second element along it.
std::int64_t stride_of(const TensorView& view, std::size_t axis);

}  // namespace onchip::host
