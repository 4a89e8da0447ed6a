// SPDX-License-Identifier: Apache-2.0
// The Hopper forward kernel with marks of the time: benchmarks/timeline.cpp runs it. Only instances
// of cuda/candidates.cmake are made of this.
#pragma once

#include <cstdint>

#include "sm90/fwd.cuh"
#include "sm90/fwd_spans.hpp"
#include "sm90/fwd_timeline.hpp"

namespace onchip::cuda::sm90 {

/// Of block 0 of the last launch.
__device__ Mark timeline_marks[kTimelineRows * kTimelineMarks];
static const bool timeline_listed = (timeline_symbols().push_back(&timeline_marks), true);

/// One row of marks, written by the first thread of a warpgroup, of the copying warp, or of the
/// scheduling one. A mark is no branch, so that it may stand between products.
class Timeline {
 public:
  __device__ __forceinline__ explicit Timeline(int row)
      : at_(blockIdx.x == 0 && (threadIdx.x % 128 == 0 || threadIdx.x == 32) ? row * kTimelineMarks
                                                                             : -1) {}
  __device__ __forceinline__ void mark(Span span) {
    asm volatile(
        "{\n.reg .pred on;\n.reg .b64 now, what;\n"
        "setp.ge.s32 on, %0, 0;\n"
        "cvt.u64.u32 what, %2;\n"
        "mov.u64 now, %%clock64;\n"
        "@on st.global.v2.u64 [%1], {now, what};\n}" ::"r"(at_),
        "l"(timeline_marks + at_), "r"(static_cast<std::uint32_t>(span))
        : "memory");
    // The last mark is written over once the row is full. -1 stays.
    at_ += (at_ & (kTimelineMarks - 1)) != kTimelineMarks - 1 ? 1 : 0;
  }

 private:
  int at_;
};

/// An instance with marks.
template <class Forward>
struct Timed : Forward {
  using Timeline = sm90::Timeline;
};

}  // namespace onchip::cuda::sm90
