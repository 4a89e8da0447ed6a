// SPDX-License-Identifier: Apache-2.0
// What threads of the Hopper forward kernel are about, for a picture of one block's time
// (fwd_timeline.cuh, benchmarks/timeline.cpp). A mark begins a span, and the next one ends it.
#pragma once

#include <array>
#include <cstdint>

namespace onchip::cuda::sm90 {

enum class Span : std::uint8_t {
  kWork,     // waits: for a tile
  kQueries,  // for Q and, where a tile follows another, its first K
  kKeys,     // for K and V
  kTurn,     // for the other warpgroups' products to be issued
  kIssue,    // issues products
  kScores,   // waits for S
  kMask,     // options and mask
  kOnline,   // softmax that looks for the maximum
  kShifted,  // softmax relative to an earlier one
  kPassed,   // lets blocks pass that others compute; zeros behind a sequence and in O
  kValues,   // waits for O
  kRescale,
  kPack,  // rounds weights
  kStore,
  kTest,     // whether the tile is lost
  kRelease,  // gives its work back
  kRoom,     // the copying warp and the scheduling warp: wait for an empty buffer
  kCopyK,
  kCopyQ,
  kCopyV,
  kFind,  // works out a tile
};

inline constexpr std::array kSpanNames{
    "wait for work", "wait for Q",    "wait for K, V",  "wait for turn",   "issue products",
    "wait for S",    "options, mask", "online softmax", "shifted softmax", "pass over blocks",
    "wait for O",    "rescale O",     "pack P",         "store",           "test if lost",
    "release",       "wait for room", "copy K",         "copy Q",          "copy V",
    "find tile"};
static_assert(kSpanNames.size() == static_cast<std::size_t>(Span::kFind) + 1);

}  // namespace onchip::cuda::sm90
