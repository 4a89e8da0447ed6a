// SPDX-License-Identifier: Apache-2.0
// The one exception type that leaves the C++ API.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "onchip/export.h"

namespace onchip {

/// Why a call failed. The values are those of `onchip_status` in onchip.h.
enum class ErrorCode : std::int32_t {
  invalid_argument = 1,  ///< An argument breaks the contract; nothing was launched or written.
  unsupported = 2,       ///< A valid request that this build or device cannot serve.
  device = 3,            ///< The device or its driver reported a failure.
  out_of_memory = 4,     ///< Host memory for the library's own small state ran out.
};

/// Thrown by every function of the C++ API. `what()` names the argument, what it is and what was
/// expected.
class ONCHIP_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace onchip
