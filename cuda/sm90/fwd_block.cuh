// SPDX-License-Identifier: Apache-2.0
// What the roles of a block of the Hopper forward kernel share: the instance's shape, barriers and
// rings of buffers.
#pragma once

#include <cstdint>

#include "prims/mbarrier.cuh"
#include "prims/shared.cuh"
#include "sm90/fwd_softmax.cuh"
#include "sm90/fwd_spans.hpp"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

/// Marks nothing. Timeline (fwd_timeline.cuh) is what an instance has instead, to be looked at.
struct NoTimeline {
  __device__ __forceinline__ explicit NoTimeline(int /*row*/) {}
  __device__ __forceinline__ void mark(Span /*span*/) {}
};

/// One instance: kGroups warpgroups compute, one copies.
template <class Element_, int kDim_, int kDimV_, int kGroups_, int kBc_, int kStages_,
          int kStagesV_, bool kFull_, bool kQRegisters_, bool kPingpong_>
struct Forward {
  using Element = Element_;
  using Timeline = NoTimeline;
  static constexpr int kDim = kDim_, kDimV = kDimV_;
  static constexpr int kGroups = kGroups_, kBc = kBc_;
  static constexpr int kStages = kStages_, kStagesV = kStagesV_;  // buffers of K, of V

  static constexpr bool kFull = kFull_;              // softcap, bias, ALiBi, dropout
  static constexpr bool kQRegisters = kQRegisters_;  // Q as A operands, read once a tile
  static constexpr bool kPingpong = kPingpong_;      // warpgroups take turns at the tensor cores
  static constexpr int kBr = 64 * kGroups;
  static constexpr int kThreads = 128 * (kGroups + 1);
  // Tiles lie in panels of 64 columns, rows of 128 bytes.
  static constexpr int kPanels = (kDim + 63) / 64, kPanelsV = (kDimV + 63) / 64;
  // Of a thread that computes, and of one that does not; those at launch must be enough for both.
  static constexpr int kRegisters = kGroups == 2 ? 232 : kGroups == 3 ? 160 : 112;
  static constexpr int kOtherRegisters = kGroups == 2 ? 40 : 32;
  static_assert(kGroups * kRegisters + kOtherRegisters <= 65536 / kThreads / 8 * 8 * (kGroups + 1));
  static constexpr int kQBytes = kPanels * kBr * 128;  // a warpgroup's rows come by themselves
  static constexpr int kKBytes = kPanels * kBc * 128;
  static constexpr int kVBytes = kPanelsV * kBc * 128;
  static constexpr int kTilesAhead = 3;  // handed out: one is stored, one computed, one copied
  static constexpr int kDueBlocks = 2;   // of a tile, still to be copied when the next one is due
  static constexpr int kStageBytes = kStages * kKBytes + kStagesV * kVBytes;
  static constexpr int kMostBytes = 226 * 1024;  // of a block's 227 KiB, some are for barriers
  static constexpr int kStagingBytes = kGroups * 4 * 2048;  // outputs on their way to memory
  // Two buffers for Q where it stays in shared memory and there is room: the next one is early.
  static constexpr int kQStages =
      !kQRegisters && 1024 + 2 * kQBytes + kStageBytes + kStagingBytes <= kMostBytes ? 2 : 1;
  // Where Q is there early, the first product of the next tile runs under the stores of this one.
  static constexpr bool kNextUnderStore = kQRegisters || kQStages == 2;
  static constexpr int kSharedBytes = 1024 + kQStages * kQBytes + kStageBytes + kStagingBytes;
  static_assert(kSharedBytes <= kMostBytes);
  // The blocks that a warpgroup passes over before its first one are in the ring at once.
  static constexpr int kLeastStages = kStages < kStagesV ? kStages : kStagesV;
  static_assert((kGroups - 1) * 64 <= kBc * kLeastStages);
  // With turns, one more: it has its turn for the block behind them before the others have theirs.
  static_assert(!kPingpong || (kGroups == 2 && (64 + kBc - 1) / kBc < kLeastStages));
  static_assert(!kFull || kBc % 32 == 0);  // drop_weights
};

/// Barriers of a block: `full` ones count bytes, `empty` ones warps that are done reading. Those of
/// tiles count threads, each for what it has itself written or read.
template <class T>
struct Barriers {
  std::uint64_t q_full[T::kGroups][T::kQStages], q_empty[T::kGroups][T::kQStages];
  std::uint64_t tile_full[T::kTilesAhead], tile_empty[T::kTilesAhead];
  std::uint64_t due;  // counts tiles of which few blocks are still to be copied
  std::uint64_t k_full[T::kStages], k_empty[T::kStages];
  std::uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
  Work work[T::kTilesAhead];
  Blocks blocks[T::kTilesAhead][T::kGroups];  // of each warpgroup's rows
  std::uint32_t lost[T::kTilesAhead];         // whether this tile is to be computed again, safely

  __device__ __forceinline__ void init() {
    constexpr int kWarps = 4 * T::kGroups;  // that compute
    for (int group = 0; group < T::kGroups; ++group) {
      for (int i = 0; i < T::kQStages; ++i) {
        barrier_init(shared_address(&q_full[group][i]), 1);
        barrier_init(shared_address(&q_empty[group][i]), 4);
      }
    }
    for (int i = 0; i < T::kTilesAhead; ++i) {
      barrier_init(shared_address(&tile_full[i]), 32);
      barrier_init(shared_address(&tile_empty[i]), 32 * (kWarps + 1));  // and the copying one
      lost[i] = 0;
    }
    for (int i = 0; i < T::kStages; ++i) {
      barrier_init(shared_address(&k_full[i]), 1);
      barrier_init(shared_address(&k_empty[i]), kWarps);
    }
    for (int i = 0; i < T::kStagesV; ++i) {
      barrier_init(shared_address(&v_full[i]), 1);
      barrier_init(shared_address(&v_empty[i]), kWarps);
    }
    barrier_init(shared_address(&due), 1);
    barrier_fence();
  }
};

/// Position in a ring of kSize buffers: which one, and the parity of its current round.
template <int kSize>
struct Ring {
  int at = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void step() {
    at = at + 1 == kSize ? 0 : at + 1;
    parity ^= at == 0;
  }
  /// The reader waits for this round, the writer for the end of the last one.
  __device__ __forceinline__ void wait_full(const std::uint64_t* full) const {
    barrier_wait(shared_address(full + at), parity);
  }
  __device__ __forceinline__ void wait_empty(const std::uint64_t* empty) const {
    barrier_wait(shared_address(empty + at), parity ^ 1);
  }
};

/// x of the first lane, known to be the same for the warp: what depends on it alone lies in uniform
/// registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffU, x, 0); }

/// Number of this thread's computing warpgroup.
__device__ __forceinline__ int group_id() {
  return uniform(static_cast<int>(threadIdx.x) / 128) - 1;
}

/// One arrival for this warp.
__device__ __forceinline__ void warp_arrive(const std::uint64_t& barrier) {
  if (lane_id() == 0) barrier_arrive(shared_address(&barrier));
}

/// Lets `count` buffers pass by, and calls `beside` for each. The count is the same for a warp, and
/// so stays the ring.
template <int kSize, class Beside>
__device__ __forceinline__ void skip(int count, Ring<kSize>& ring, const std::uint64_t* full,
                                     const std::uint64_t* empty, Beside beside) {
  for (count = uniform(count); count > 0; --count) {
    ring.wait_full(full);
    __syncwarp();
    warp_arrive(empty[ring.at]);
    ring.step();
    beside();
  }
}

}  // namespace onchip::cuda::sm90
