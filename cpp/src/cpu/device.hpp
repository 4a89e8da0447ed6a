// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "onchip/plan.hpp"

namespace onchip::cpu {

/// Facts of this machine's CPU for the planner, read once. `units` is not part of them: it is
/// num_threads() at the time of planning.
const DeviceInfo& cpu_device();

}  // namespace onchip::cpu
