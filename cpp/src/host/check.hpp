// SPDX-License-Identifier: Apache-2.0
// Small checks that name the argument when they fail. Nothing here allocates unless it fails.
#pragma once

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
inline constexpr std::int64_t kAny = -1;

/// The tensor must be given, have these extents (kAny: any), and none of them negative.
void check_shape(const char* name, const TensorView& view,
                 std::initializer_list<std::int64_t> expected, const char* meaning);

/// The tensor's dtype must be the one that `because` explains.
void check_dtype(const char* name, const TensorView& view, DType expected, const char* because);

void check_device(const char* name, const TensorView& view, const Device& expected);

/// The last axis must be dense: kernels read rows as whole vectors.
void check_last_stride(const char* name, const TensorView& view);

/// No two elements of a written tensor may share memory by a stride of 0.
void check_writable(const char* name, const TensorView& view);

/// A tensor with elements must have memory.
void check_memory(const char* name, const TensorView& view);

}  // namespace onchip::host
