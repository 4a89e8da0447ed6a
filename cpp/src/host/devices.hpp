// SPDX-License-Identifier: Apache-2.0
// Facts of GPUs by name, so that planning needs no GPU; peaks of others; whether a plan fits a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/problem.hpp"
#include "onchip/plan.hpp"

namespace onchip::host {

/// The family to plan with on a GPU of that compute capability.
constexpr std::int32_t newest_family(std::int32_t compute_capability) {
  return compute_capability == 90 ? 90 : 80;
}

/// Case, spaces, dashes, underscores and the words NVIDIA and GeForce do not count. Null: unknown.
const DeviceInfo* find_named_device(std::string_view name);

std::vector<std::string> named_devices();

/// Fills bandwidth and peaks of a real GPU: from its datasheet where `find_named_device` knows it,
/// else from what the device reports and what its multiprocessors do in a clock.
void fill_peaks(DeviceInfo& info, double hertz, double bandwidth);

/// A plan may have been made for another device than it is launched on, a named one above all.
/// Throws `Error` (invalid_argument) where the plan does not fit `real`, saying what differs.
void check_device(const Problem& problem, const PlanInfo& planned, const DeviceInfo& real);

}  // namespace onchip::host
