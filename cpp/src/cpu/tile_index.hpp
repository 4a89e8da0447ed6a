// SPDX-License-Identifier: Apache-2.0
// Numbering of the query tiles of a launch, over sequences of any lengths.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/query_tile.hpp"

namespace onchip::cpu {

/// Tiles in the order sequence, KV head, tile; within a head the last tile first, which is the
/// longest where the mask is causal. `first_tile` (B + 1 entries) is memory of the workspace.
class TileIndex {
 public:
  TileIndex(const host::Problem& problem, const host::Operands& operands, std::int64_t tile_q,
            std::int64_t* first_tile)
      : problem_(problem), operands_(operands), tile_q_(tile_q), first_tile_(first_tile) {
    first_tile[0] = 0;
    const std::int64_t group = problem.heads_q / problem.heads_kv;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      first_tile[b + 1] =
          first_tile[b] + tiles_of(sequence_at(problem, operands, b), group, tile_q);
    }
  }

  [[nodiscard]] std::int64_t tiles() const {
    return first_tile_[problem_.batch] * problem_.heads_kv;
  }

  /// Fills `tile` with tile `number` < tiles().
  void set(std::int64_t number, QueryTile& tile) const {
    const std::int64_t* begin = first_tile_;
    const std::int64_t* next = std::upper_bound(
        begin, begin + problem_.batch + 1, number,
        [this](std::int64_t n, std::int64_t first) { return n < first * problem_.heads_kv; });
    const std::int64_t b = next - begin - 1;
    const std::int64_t tiles = first_tile_[b + 1] - first_tile_[b];
    const std::int64_t local = number - first_tile_[b] * problem_.heads_kv;
    set_tile(problem_, sequence_at(problem_, operands_, b), local / tiles,
             tiles - 1 - local % tiles, tile_q_, tile);
  }

 private:
  const host::Problem& problem_;
  const host::Operands& operands_;
  std::int64_t tile_q_;
  std::int64_t* first_tile_;
};

/// Row of the split partials that belongs to row r of the tile.
inline std::int64_t partial_row(const host::Problem& problem, const QueryTile& tile,
                                std::int64_t r) {
  const Sequence& s = tile.sequence;
  const std::int64_t start = problem.packed ? s.q_start : s.batch * problem.seqlen_q;
  return (start + tile.position[r]) * problem.heads_q + tile.head[r];
}

/// Calls `clear(row)` for the rows of a packed tensor before the first and after the last sequence.
template <class Clear>
void for_unused_rows(const host::Problem& problem, const std::int32_t* cu_seqlens,
                     std::int64_t stride, std::int64_t total, Clear clear) {
  for (std::int64_t row = 0; row < cu_seqlens[0]; ++row) clear(row);
  for (std::int64_t row = cu_seqlens[problem.batch * stride]; row < total; ++row) clear(row);
}

}  // namespace onchip::cpu
