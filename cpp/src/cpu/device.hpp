// SPDX-License-Identifier: Apache-2.0
// What is known of this machine's CPU, and which of its instruction sets may be used.
#pragma once

#include <cstdint>

#include "onchip/plan.hpp"

namespace onchip::cpu {

/// Facts of this machine's CPU for the planner, read once. `units` is not part of them: it is
/// num_threads() at the time of planning. Bandwidth and FLOP rates are estimates, see device.cpp.
const DeviceInfo& cpu_device();

/// CPUs this process may run on: its affinity mask, less where a cgroup quota allows fewer. >= 1.
std::int32_t available_cpus();

/// Keeps Highway's dynamic dispatch at or below ONCHIP_CPU_ISA (ssse3, sse4, avx2, avx3 or avx512,
/// ..., in any case). An unknown value caps nothing, so `cpu_isa()` then differs from the variable.
/// Acts once, from any thread; must come before the first dispatch.
void apply_isa_cap();

}  // namespace onchip::cpu
