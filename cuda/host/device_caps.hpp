// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "onchip/plan.hpp"

namespace onchip::cuda {

/// Facts of a device, read once and kept for the life of the process. Thread-safe. Throws `Error`
/// (device) where there is no such device, or no driver.
const DeviceInfo& device_caps(std::int32_t index);

/// Makes a device current for this thread, and then the one that was current before.
class DeviceGuard {
 public:
  explicit DeviceGuard(std::int32_t index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace onchip::cuda
