// SPDX-License-Identifier: Apache-2.0
// What the Hopper forward kernels compute, and how they cut the queries.
#pragma once

#include <cstdint>

#include "host/problem.hpp"

namespace onchip::host {

/// Whether they compute the problem. Bias, dropout, pages and a scale that is not positive are left
/// to sm80, as are strides that TMA cannot follow: it wants multiples of 16 bytes.
bool hopper_serves(const Problem& problem);

/// A tile of `tile_q` rows holds 2^shift heads of each position: all of a group where sequences are
/// shorter than a tile and the group's size is a power of two; else one.
std::int32_t hopper_pack_shift(const Problem& problem, std::int64_t tile_q);

/// Tiles of one KV head, of one sequence when dense and over all at most when packed; and of all.
std::int64_t hopper_tiles(const Problem& problem, std::int64_t tile_q);
std::int64_t hopper_blocks(const Problem& problem, std::int64_t tile_q);

}  // namespace onchip::host
