// SPDX-License-Identifier: Apache-2.0
// The caller's arrays as views, and memory for callers whose framework cannot lend any.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dlpack.hpp"
#include "onchip/tensor.hpp"

namespace onchip::python {

namespace nb = nanobind;

/// One argument of a call: a view of the caller's memory and what keeps it alive.
struct Tensor {
  std::string name;  // as the caller knows it, for messages
  TensorView view;
  bool read_only = false;
  nb::object owner;
};

/// Host memory that this module owns, handed out through DLPack without a copy.
class Buffer {
 public:
  Buffer(std::vector<std::int64_t> shape, DType dtype);

  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] nb::object dlpack(bool versioned) const;

 private:
  std::shared_ptr<std::byte[]> memory_;
  TensorView view_;
};

/// Takes `source`: a DLPack capsule, a Buffer, or, with `exchange` (the capsule of its type's C
/// exchange API), any object. `dtype`, unless none, says what 16-bit integers really hold.
Tensor take(const char* name, nb::handle source, nb::handle exchange, DType dtype);

/// The CUDA stream that the library of `source` works on now.
std::uintptr_t current_stream(nb::handle source, nb::handle exchange);

/// That many bytes on `device` from the library of `exchange`, on its current stream; without a
/// view where it has none to give.
Tensor allocate(const char* name, std::int64_t bytes, onchip::Device device, nb::handle exchange);

/// A tensor of that shape without memory, for planning.
Tensor planned(const char* name, const std::vector<std::int64_t>& shape, DType dtype,
               onchip::Device device);

/// The parts of a stacked tensor along its first axis.
std::vector<Tensor> split(const Tensor& stacked);

/// The first `count` of them.
nb::tuple tuple_of(const std::array<std::int64_t, kMaxDims>& values, std::int32_t count);

/// The type of that name; TypeError naming `name` where there is none.
DType dtype_named(const char* name, const char* dtype);

void bind_tensor(nb::module_& m);

}  // namespace onchip::python
