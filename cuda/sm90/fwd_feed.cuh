// SPDX-License-Identifier: Apache-2.0
// The warpgroup of a block that does not compute: one warp hands out tiles, one thread copies them.
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

/// The next tile with keys from `rank` on, which moves behind it, or a pause where none is left.
template <class T>
__device__ __forceinline__ Work find_work(const ForwardParams& params, unsigned& rank) {
  const auto all = static_cast<unsigned>(params.common.blocks);
  const auto following = [&] {
    if (params.common.next_tile == nullptr) return rank + gridDim.x;
    unsigned next = 0;
    if (lane_id() == 0) next = atomicAdd(params.common.next_tile, 1U) + gridDim.x;
    return __shfl_sync(0xffffffffU, next, 0);
  };
  Work work;
  work.number = Work::kPause;
  while (rank < all && work.number < 0) {
    const auto number = static_cast<int>(rank);
    work.tile = tile_at(params, number, T::kBr);
    rank = following();
    if (work.tile.positions <= 0) continue;
    work.set_blocks(T::kBc);
    if (work.end_block > work.first_block) {
      work.number = number;
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
  unsigned rank = blockIdx.x;
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
      Work work = find_work<T>(params, rank);
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

/// The copying thread: Q, and rings of K and V. V trails K by a block.
template <class T>
__device__ __forceinline__ void copy_tiles(const ForwardParams& params, Barriers<T>& barriers,
                                           const Tiles& shared) {
  const host::Problem& p = params.common.problem;
  Ring<T::kTilesAhead> tiles;
  Ring<T::kQStages> queries;
  Ring<T::kStages> keys;
  Ring<T::kStagesV> values;
  typename T::Timeline time(T::kGroups);
  const auto load_keys = [&](const CUtensorMap& map, std::uint32_t to, std::uint32_t full,
                             int panels, const Tile& tile, int block) {
    barrier_expect(full, panels * T::kBc * 128);
#pragma unroll
    for (int panel = 0; panel < panels; ++panel) {
      tma_load(to + panel * (T::kBc * 128), map, full, panel * 64, tile.k_start + block * T::kBc,
               tile.kv_head, p.has_cu_seqlens_k ? 0 : tile.batch);
    }
  };
  const auto load_k = [&](const Tile& tile, int block) {
    time.mark(Span::kRoom);
    keys.wait_empty(barriers.k_empty);
    time.mark(Span::kCopyK);
    load_keys(params.k, shared.k + keys.at * T::kKBytes, shared_address(barriers.k_full + keys.at),
              T::kPanels, tile, block);
    keys.step();
  };
  const auto load_v = [&](const Tile& tile, int block) {
    time.mark(Span::kRoom);
    values.wait_empty(barriers.v_empty);
    time.mark(Span::kCopyV);
    load_keys(params.v, shared.v + values.at * T::kVBytes,
              shared_address(barriers.v_full + values.at), T::kPanelsV, tile, block);
    values.step();
  };
  const auto load_q = [&](const Tile& tile) {
    constexpr int kRows = 64;
    const std::uint32_t to = shared.q + queries.at * T::kQBytes;
    const int head = tile.head - tile.kv_head * static_cast<int>(params.common.divisors.group.by);
#pragma unroll
    for (int group = 0; group < T::kGroups; ++group) {
      time.mark(Span::kRoom);
      queries.wait_empty(barriers.q_empty[group]);
      time.mark(Span::kCopyQ);
      const std::uint32_t full = shared_address(barriers.q_full[group] + queries.at);
      const int first = tile.first + (group * kRows >> params.pack_shift);
      barrier_expect(full, T::kPanels * kRows * 128);
#pragma unroll
      for (int panel = 0; panel < T::kPanels; ++panel) {
        tma_load(to + panel * (T::kBr * 128) + group * (kRows * 128), params.q, full, panel * 64,
                 head, tile.q_start + first, tile.kv_head, p.packed ? 0 : tile.batch);
      }
    }
    queries.step();
  };
  while (true) {
    time.mark(Span::kWork);
    tiles.wait_full(barriers.tile_full);
    const Work& work = barriers.work[tiles.at];
    if (work.number == Work::kEnd) return;
    if (work.number < 0) {
      barrier_arrive(shared_address(&barriers.due));
    } else {
      const int first = work.first_block;
      int block = work.end_block - 1;
      const int due = min(first + T::kDueBlocks, block);
      load_k(work.tile, block);
      load_q(work.tile);
#pragma unroll 1
      for (; block >= first; --block) {
        if (block == due) barrier_arrive(shared_address(&barriers.due));
        if (block > first) load_k(work.tile, block - 1);
        load_v(work.tile, block);
      }
    }
    barrier_arrive(shared_address(barriers.tile_empty + tiles.at));
    tiles.step();
  }
}

}  // namespace onchip::cuda::sm90
