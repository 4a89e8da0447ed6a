// SPDX-License-Identifier: Apache-2.0
// A tile of query rows that share one KV head, and what each row is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host/cpu_plan.hpp"
#include "host/problem.hpp"
#include "host/sequence.hpp"

namespace onchip::cpu {

using host::intersect;
using host::KeyRange;
using host::offset_of;
using host::Sequence;
using host::sequence_at;
using host::visible_keys;

/// Rows of a tile are (head, position) pairs of one sequence and one KV head. A sequence shorter
/// than a tile shares it between the heads of the group (GQA), so that a tile is not left empty.
struct QueryTile {
  Sequence sequence;
  std::int64_t kv_head = 0;
  std::int64_t rows = 0;
  KeyRange reach;  // keys that any row sees
  std::int64_t head[host::kCpuTileQ], position[host::kCpuTileQ];
  KeyRange keys[host::kCpuTileQ];
};

/// Keys that some row of a panel sees, and keys that every row sees.
struct PanelKeys {
  KeyRange any, all;
};

inline std::int64_t tiles_of(const Sequence& s, std::int64_t group, std::int64_t tile_q) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  return s.q_rows < tile_q ? ceil_div(s.q_rows * group, tile_q)
                           : group * ceil_div(s.q_rows, tile_q);
}

/// Fills `tile` with `rows` rows from `flat` on, counted through the positions of head `head`, then
/// those of the next.
inline void set_rows(const host::Problem& problem, const Sequence& s, std::int64_t head,
                     std::int64_t flat, std::int64_t rows, QueryTile& tile) {
  tile.sequence = s;
  tile.kv_head = head / (problem.heads_q / problem.heads_kv);
  tile.rows = rows;
  tile.reach = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    tile.head[r] = head + (flat + r) / s.q_rows;
    tile.position[r] = (flat + r) % s.q_rows;
    const KeyRange keys = visible_keys(problem, s, tile.position[r]);
    tile.keys[r] = keys;
    if (keys.empty()) continue;
    const KeyRange reach = tile.reach.empty() ? keys : tile.reach;
    tile.reach = {std::min(reach.lo, keys.lo), std::max(reach.hi, keys.hi)};
  }
}

/// Fills `tile` with tile number `index` of (sequence, kv_head).
inline void set_tile(const host::Problem& problem, const Sequence& s, std::int64_t kv_head,
                     std::int64_t index, std::int64_t tile_q, QueryTile& tile) {
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const bool shared = s.q_rows < tile_q;
  const std::int64_t span = shared ? s.q_rows * group : s.q_rows;  // rows that tiles cut up
  const std::int64_t tiles = (span + tile_q - 1) / tile_q;
  const std::int64_t first = index % tiles * tile_q;
  set_rows(problem, s, kv_head * group + index / tiles, first, std::min(tile_q, span - first),
           tile);
}

/// Ranges of the rows [first, first + width) of the tile. Lanes past the last row do not count.
inline PanelKeys panel_keys(const QueryTile& tile, std::int64_t first, std::int64_t width) {
  PanelKeys keys{{INT64_MAX, 0}, {0, INT64_MAX}};
  for (std::int64_t r = first; r < std::min(first + width, tile.rows); ++r) {
    keys.all.lo = std::max(keys.all.lo, tile.keys[r].lo);
    keys.all.hi = std::min(keys.all.hi, tile.keys[r].hi);
    if (tile.keys[r].empty()) continue;
    keys.any.lo = std::min(keys.any.lo, tile.keys[r].lo);
    keys.any.hi = std::max(keys.any.hi, tile.keys[r].hi);
  }
  return keys;
}

}  // namespace onchip::cpu
