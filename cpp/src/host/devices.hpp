// SPDX-License-Identifier: Apache-2.0
// Facts of GPUs by name, so that planning needs no GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "onchip/plan.hpp"

namespace onchip::host {

/// Case, spaces, dashes, underscores and the words NVIDIA and GeForce do not count. Null: unknown.
const DeviceInfo* find_named_device(std::string_view name);

std::vector<std::string> named_devices();

}  // namespace onchip::host
