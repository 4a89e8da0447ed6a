// SPDX-License-Identifier: Apache-2.0
// Decisions of the planner that explain() and the GPU backends need again.
#pragma once

#include <cstdint>

#include "host/cost.hpp"
#include "host/plan_impl.hpp"
#include "host/tiles.hpp"

namespace onchip::host {

/// The table row behind a GPU plan; null for the CPU.
const TileRow* tile_of(const Problem& problem, const PlanInfo& info);

/// Whether (query, head) pairs of one KV head fill a query tile of sm80 together (GQA, forward).
bool packs_heads(const Problem& problem, std::int64_t tile_q);

/// Whether the plan depends on the number of multiprocessors.
bool counts_units(const Problem& problem);

/// What runs instead of a plan for Hopper where TMA cannot read the addresses, which only a launch
/// knows. It needs no more workspace.
PlanInfo plan_without_hopper(Problem problem, DeviceInfo device);

/// The plan's way through the problem, as the cost model sees it.
Tiling tiling_of(const Problem& problem, const PlanInfo& info);

}  // namespace onchip::host
