// SPDX-License-Identifier: Apache-2.0
// One call of the C++ API, put together argument by argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "onchip/attention.hpp"
#include "tensor.hpp"

namespace onchip::python {

class Call {
 public:
  explicit Call(bool backward) : pass_(backward ? Pass::backward : Pass::forward) {}

  void set_options(const Options& options) { attention_.options = options; }

  /// Makes `tensor` the field of `Attention` with that name, after checking its dtype against q's,
  /// which is set first. With `write`, refuses memory that may not be written.
  void set(const char* field, const Tensor& tensor, bool write);

  /// Makes them q, k and v, each of which has `axes` axes; `described` says so in words.
  void set_qkv(const Tensor& q, const Tensor& k, const Tensor& v, std::int32_t axes,
               const char* described);

  /// That of q, with v's last extent.
  [[nodiscard]] nb::tuple out_shape() const;

  /// Plans for the device of q, out of a small cache, and returns the bytes of workspace needed
  /// (room to align it included).
  std::size_t prepare();

  /// Takes the workspace from the library of `exchange`, the capsule of its C exchange API; false
  /// where it has none to give.
  bool allocate(nb::handle exchange);

  /// Plans for any device.
  [[nodiscard]] Plan plan_for(const std::optional<DeviceInfo>& device) const;

  /// Computes, without the GIL. `workspace` has the bytes that prepare() returned; it is null where
  /// these are 0 or allocate() took them.
  void run(const Tensor* workspace, std::uintptr_t stream);

 private:
  struct Given {
    const char* field;
    Tensor tensor;
  };

  void check_apart(const Tensor& written) const;
  [[noreturn]] void rethrow(const Error& error) const;

  Pass pass_;
  Attention attention_;
  std::vector<Given> given_;
  std::optional<Plan> plan_;
  std::optional<Tensor> workspace_;
};

void bind_call(nb::module_& m);

}  // namespace onchip::python
