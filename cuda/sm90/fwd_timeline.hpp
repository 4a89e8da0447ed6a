// SPDX-License-Identifier: Apache-2.0
// Where marks of the time lie (fwd_timeline.cuh), for host and device.
#pragma once

#include <cstdint>
#include <vector>

namespace onchip::cuda::sm90 {

struct alignas(16) Mark {
  std::uint64_t clock, span;
};

// Of one block: a row for each computing warpgroup, then one of the copying warp and one of the
// scheduling warp. The number of marks is a power of two.
inline constexpr int kTimelineRows = 6, kTimelineMarks = 4096;

/// The symbols of Mark[kTimelineRows * kTimelineMarks] on the device: every instance has one of its
/// own, in its translation unit, and adds it at the start of the program.
inline std::vector<const void*>& timeline_symbols() {
  static std::vector<const void*> symbols;
  return symbols;
}

}  // namespace onchip::cuda::sm90
