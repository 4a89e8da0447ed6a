// SPDX-License-Identifier: Apache-2.0
// The warpgroup of a block that does not compute: one warp hands out tiles, one copies them.
#pragma once

#include <cstdint>

#include "prims/mbarrier.cuh"
#include "prims/shared.cuh"
#include "prims/tma.cuh"
#include "sm90/fwd_block.cuh"
#include "sm90/fwd_params.hpp"
#include "sm90/fwd_spans.hpp"
#include "sm90/fwd_store.cuh"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

/// Shared memory tiles.
struct Tiles {
  std::uint32_t q, k, v, staging;
};

/// The next tile with keys behind number `last` (-1 at first), which becomes its own, or a pause
/// where none is left. No number is taken before it is needed: other blocks may need it more.
template <class T>
__device__ __forceinline__ Work find_work(const ForwardParams& params, int& last) {
  const int all = static_cast<int>(params.common.blocks);
  const auto next = [&] {
    if (last < 0) return static_cast<int>(blockIdx.x);
    if (params.common.next_tile == nullptr) return last + static_cast<int>(gridDim.x);
    unsigned taken = 0;
    if (lane_id() == 0) taken = atomicAdd(params.common.next_tile, 1U);
    return uniform(static_cast<int>(taken + gridDim.x));
  };
  Work work;
  work.number = Work::kPause;
  while (last < all && work.number < 0) {
    last = next();
    if (last >= all) break;
    work.tile = tile_at(params, last, T::kBr);
    if (work.tile.positions <= 0) continue;
    work.set_blocks(T::kBc);
    if (work.end_block > work.first_block) {
      work.number = last;
    } else {
      store_nothing<T>(params, work.tile);
    }
  }
  return work;
}

/// The warp that hands out tiles, each when the copies of the one before it near their end, so that
/// it is there in time but not taken from another block early; it writes those without keys. A tile
/// whose sums were lost is handed out again where its work lay. Behind the last tile come pauses,
/// in which the ones before them end, and with them what may have to be computed again.
template <class T>
__device__ __forceinline__ void schedule_tiles(const ForwardParams& params, Barriers<T>& barriers) {
  Ring<T::kTilesAhead> tiles;
  int last = -1;
  int pauses = 0;
  std::uint32_t parity = 0;
  typename T::Timeline time(T::kGroups + 1);
  while (true) {
    time.mark(Span::kRoom);
    parity ^= 1;
    barrier_wait(shared_address(&barriers.due), parity);
    tiles.wait_empty(barriers.tile_empty);
    time.mark(Span::kFind);
    const bool again = barriers.lost[tiles.at] != 0;
    int number = 0;
    if (!again) {
      Work work = find_work<T>(params, last);
      if (work.number < 0 && pauses == T::kTilesAhead - 1) work.number = Work::kEnd;
      number = work.number;
      if (lane_id() == 0) barriers.work[tiles.at] = work;
    }
    pauses = number < 0 ? pauses + 1 : 0;
    __syncwarp();  // every lane has read whether the tile is lost, and reads its work
    const Work& work = barriers.work[tiles.at];
    Tile& tile = barriers.work[tiles.at].tile;
    if (lane_id() < T::kGroups) {
      const auto position = [&](int row) { return tile.first + (row >> params.pack_shift); };
      const int row = lane_id() * 64;
      Blocks blocks = work.blocks_of(position(row), position(row + 63), T::kBc);
      if (again || params.safe != 0) blocks.shifted_end = work.first_block;
      barriers.blocks[tiles.at][lane_id()] = blocks;
    }
    if (lane_id() == 0) tile.out = first_row(params.common.problem.out, tile);
    if (lane_id() == 1) tile.lse = first_row(params.common.problem.lse, tile);
    barriers.lost[tiles.at] = 0;
    barrier_arrive(shared_address(barriers.tile_full + tiles.at));
    if (number == Work::kEnd) return;
    tiles.step();
  }
}

/// The copying warp: Q, and rings of K and V. V trails K by a block. One lane starts the copies, of
/// coordinates in uniform registers: ptxas would put a loop over the lanes around each one, which
/// takes it 250 clocks, and at D 256 there are eight for each block of keys.
template <class T>
class Copier {
 public:
  __device__ __forceinline__ Copier(const ForwardParams& params, Barriers<T>& barriers,
                                    const Tiles& shared)
      : params_(params), barriers_(barriers), shared_(shared), time_(T::kGroups) {}

  __device__ __forceinline__ void run() {
    Ring<T::kTilesAhead> tiles;
    while (true) {
      time_.mark(Span::kWork);
      tiles.wait_full(barriers_.tile_full);
      const Work& work = barriers_.work[tiles.at];
      const int number = uniform(work.number);
      if (number == Work::kEnd) return;
      if (number < 0) {
        warp_arrive(barriers_.due);
      } else {
        copy(work);
      }
      barrier_arrive(shared_address(barriers_.tile_empty + tiles.at));
      tiles.step();
    }
  }

 private:
  __device__ __forceinline__ void copy(const Work& work) {
    kv_head_ = uniform(work.tile.kv_head);
    batch_ = uniform(work.tile.batch);
    k_start_ = uniform(work.tile.k_start);
    const int first = uniform(work.first_block);
    int block = uniform(work.end_block) - 1;
    const int due = min(first + T::kDueBlocks, block);
    load_k(block);
    load_q(uniform(work.tile.head), uniform(work.tile.q_start + work.tile.first));
#pragma unroll 1
    for (; block >= first; --block) {
      if (block == due) warp_arrive(barriers_.due);
      if (block > first) load_k(block - 1);
      load_v(block);
    }
  }

  __device__ __forceinline__ void load_k(int block) {
    time_.mark(Span::kRoom);
    keys_.wait_empty(barriers_.k_empty);
    time_.mark(Span::kCopyK);
    load_keys<T::kPanels>(params_.k, shared_.k + keys_.at * T::kKBytes, barriers_.k_full[keys_.at],
                          block);
    keys_.step();
  }

  __device__ __forceinline__ void load_v(int block) {
    time_.mark(Span::kRoom);
    values_.wait_empty(barriers_.v_empty);
    time_.mark(Span::kCopyV);
    load_keys<T::kPanelsV>(params_.v, shared_.v + values_.at * T::kVBytes,
                           barriers_.v_full[values_.at], block);
    values_.step();
  }

  template <int kPanels>
  __device__ __forceinline__ void load_keys(const CUtensorMap& map, std::uint32_t to,
                                            std::uint64_t& full, int block) {
    constexpr std::uint32_t kBytes = T::kBc * 128;
    const int batch = params_.common.problem.has_cu_seqlens_k ? 0 : batch_;
    if (!elect_one()) return;
    barrier_expect(shared_address(&full), kPanels * kBytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      tma_load(to + panel * kBytes, map, shared_address(&full), panel * 64,
               k_start_ + block * T::kBc, kv_head_, batch);
    }
  }

  /// Rows of Q from `row` on, each warpgroup's by themselves.
  __device__ __forceinline__ void load_q(int head, int row) {
    constexpr int kRows = 64;
    const std::uint32_t to = shared_.q + queries_.at * T::kQBytes;
    const int head_of_group = head - kv_head_ * static_cast<int>(params_.common.divisors.group.by);
    const int batch = params_.common.problem.packed ? 0 : batch_;
#pragma unroll
    for (int group = 0; group < T::kGroups; ++group) {
      time_.mark(Span::kRoom);
      queries_.wait_empty(barriers_.q_empty[group]);
      time_.mark(Span::kCopyQ);
      if (!elect_one()) continue;
      const std::uint32_t full = shared_address(barriers_.q_full[group] + queries_.at);
      barrier_expect(full, T::kPanels * kRows * 128);
#pragma unroll
      for (int panel = 0; panel < T::kPanels; ++panel) {
        tma_load(to + panel * (T::kBr * 128) + group * (kRows * 128), params_.q, full, panel * 64,
                 head_of_group, row + (group * kRows >> params_.pack_shift), kv_head_, batch);
      }
    }
    queries_.step();
  }

  const ForwardParams& params_;
  Barriers<T>& barriers_;
  const Tiles& shared_;
  Ring<T::kQStages> queries_;
  Ring<T::kStages> keys_;
  Ring<T::kStagesV> values_;
  int kv_head_ = 0, batch_ = 0, k_start_ = 0;  // of the tile
  typename T::Timeline time_;
};

}  // namespace onchip::cuda::sm90
