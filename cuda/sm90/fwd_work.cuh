// SPDX-License-Identifier: Apache-2.0
// From a tile's number to its query rows and keys, for the roles of the Hopper kernel. Nearly all
// in 32 bits: registers are what the kernel is short of.
#pragma once

#include <cstdint>

#include "common/tile_number.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "sm90/fwd_params.hpp"

namespace onchip::cuda::sm90 {

/// Row r of a tile is position first + (r >> shift) of head `head` + r % 2^shift. The row at
/// position i sees keys [max(0, i + from), min(k_len, i + to)), which is host::key_bounds.
struct Tile {
  int batch, head, kv_head;
  int q_start, q_len, k_start, k_len;
  int first, positions;  // positions 0: nothing to do
  int from, to;
  std::int64_t out, lse;  // where its first row is (first_row)

  __device__ __forceinline__ int key_first(int position) const { return max(0, position + from); }
  __device__ __forceinline__ int key_end(int position) const { return min(k_len, position + to); }
};

/// Blocks of keys as some rows of a tile see them: computed from `last` on down, and of which every
/// row sees all keys.
struct Blocks {
  int last;
  int open_first, open_end;
  int shifted_end;  // open blocks before this one: each row has met a key behind them

  __device__ __forceinline__ bool hides(int block) const {
    return block < open_first || block >= open_end;
  }
};

/// A tile and its blocks of keys, as one warp works them out for the others.
struct Work {
  static constexpr int kPause = -1, kEnd = -2;  // in place of a number
  Tile tile;
  int number;
  int first_block, end_block;  // blocks that some row sees

  __device__ __forceinline__ void set_blocks(int tile_k) {
    const int last = tile.first + tile.positions - 1;
    const int end = tile.first >= tile.q_len ? 0 : max(tile.key_end(last), 0);
    first_block = tile.key_first(tile.first) / tile_k;
    end_block = (end + tile_k - 1) / tile_k;
  }
  /// Those of positions [first, last], which may lie behind the tile's last.
  [[nodiscard]] __device__ __forceinline__ Blocks blocks_of(int first, int last, int tile_k) const {
    last = min(last, tile.first + tile.positions - 1);
    first = min(first, last);
    const int open = max(tile.key_end(first), 0);
    const int end = (max(tile.key_end(last), 0) + tile_k - 1) / tile_k;
    return {.last = max(min(end, end_block) - 1, first_block),
            .open_first = (tile.key_first(last) + tile_k - 1) / tile_k,
            .open_end = open / tile_k,
            .shifted_end = (open + tile_k - 1) / tile_k - 1};
  }
};

/// The tile of number `number`, longest ones of a head first; tile_q rows.
__device__ __forceinline__ Tile tile_at(const ForwardParams& params, int number, int tile_q) {
  struct {
    host::Sequence sequence;
    int kv_head = 0;
  } work;
  const host::Problem& p = params.common.problem;
  Tile tile;
  tile.positions = 0;
  find_tile(params.common, static_cast<unsigned>(number), work, [&](int rank) {
    const host::Sequence& s = work.sequence;
    const auto heads = static_cast<int>(params.common.divisors.group.by) >> params.pack_shift;
    const int span = tile_q >> params.pack_shift;  // positions of a tile
    const int q_rows = static_cast<int>(s.q_rows);
    const int from_last = rank / heads;
    tile.first = ((q_rows + span - 1) / span - 1 - from_last) * span;
    tile.positions = min(span, q_rows - tile.first);
    tile.head = static_cast<int>(work.kv_head * params.common.divisors.group.by) +
                ((rank - from_last * heads) << params.pack_shift);
  });
  const host::Sequence& s = work.sequence;
  tile.batch = static_cast<int>(s.batch);
  tile.kv_head = work.kv_head;
  tile.q_start = static_cast<int>(s.q_start);
  tile.q_len = static_cast<int>(s.q_len);
  tile.k_start = static_cast<int>(s.k_start);
  tile.k_len = static_cast<int>(s.k_len);
  constexpr std::int64_t kFar = std::int64_t{1} << 30;  // farther than any sequence is long
  const std::int64_t diagonal = s.k_len - s.q_len;
  const std::int64_t reach = s.q_len + s.k_len;
  tile.from = static_cast<int>(p.window_left < 0 ? -kFar : diagonal - min(p.window_left, reach));
  tile.to = static_cast<int>(p.window_right < 0 ? kFar : diagonal + min(p.window_right, reach) + 1);
  return tile;
}

/// Elements from a tensor's start to a tile's first row.
__device__ __forceinline__ std::int64_t first_row(const host::Strides& strides, const Tile& tile) {
  return host::offset_of(strides, tile.batch, tile.q_start, tile.first, tile.head);
}

/// One of a tile's rows.
struct RowPlace {
  int position, head;
  bool stored, counts;  // whether the row exists, and lies within seqused_q

  __device__ __forceinline__ RowPlace(const ForwardParams& params, const Tile& tile, int row)
      : position(tile.first + (row >> params.pack_shift)),
        head(tile.head + (row & ((1 << params.pack_shift) - 1))),
        stored(position < tile.first + tile.positions),
        counts(stored && position < tile.q_len) {}
};

/// Elements from a tile's first row to another of its rows.
__device__ __forceinline__ std::int64_t row_offset(const ForwardParams& params,
                                                   const host::Strides& strides, int row) {
  const unsigned position = static_cast<unsigned>(row) >> params.pack_shift;
  const unsigned head = static_cast<unsigned>(row) & ((1U << params.pack_shift) - 1);
  return position * strides.row + head * strides.head;
}

}  // namespace onchip::cuda::sm90
