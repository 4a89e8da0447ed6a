// SPDX-License-Identifier: Apache-2.0
// What the Hopper forward kernels compute, and how they cut the queries.
#pragma once

#include <cstdint>

#include "host/problem.hpp"
#include "onchip/plan.hpp"

namespace onchip::host {

/// Whether a plan runs one.
inline bool is_hopper(const PlanInfo& info) { return info.backend == "sm90"; }

/// What they lack for the problem, in a word or two, or null where they compute it.
const char* hopper_lacks(const Problem& problem);

/// A tile of `tile_q` rows holds 2^shift heads of each position: all of a group where sequences are
/// shorter than a tile and the group's size is a power of two; else one. Of packed sequences only
/// the hint is asked: their number and sum would let a row's bits depend on its neighbours.
std::int32_t hopper_pack_shift(const Problem& problem, std::int64_t tile_q);

/// Tiles of one KV head, of one sequence when dense and over all at most when packed; and of all.
std::int64_t hopper_tiles(const Problem& problem, std::int64_t tile_q);
std::int64_t hopper_blocks(const Problem& problem, std::int64_t tile_q);

/// Whether blocks take their tiles from a counter in the workspace: where a block has more than one
/// and their numbers of keys differ. Elsewhere each knows its own beforehand.
bool hopper_counts_tiles(const Problem& problem, const PlanInfo& info);

}  // namespace onchip::host
