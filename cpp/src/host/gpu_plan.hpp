// SPDX-License-Identifier: Apache-2.0
// Tiles and workspace of the GPU kernels: the one description that planner and backend share.
#pragma once

#include <cstdint>

#include "host/problem.hpp"

namespace onchip::host {

/// Byte offsets of the buffers in a launch's workspace; kAbsent: not needed.
struct GpuWorkspace {
  static constexpr std::int64_t kAbsent = -1;
  std::int64_t first_tile = kAbsent;   // packed: int64 [B + 1]
  std::int64_t partial_out = kAbsent;  // splits: float32 [splits][total_q * Hq][Dv]
  std::int64_t partial_lse = kAbsent;  // splits: float32 [splits][total_q * Hq]
  std::int64_t delta = kAbsent;        // backward: float32 [Hq][total_q]
  std::int64_t lse2 = kAbsent;         // backward: float32 [Hq][total_q]
  std::int64_t next_tile = kAbsent;    // Hopper: uint32, tiles handed out
  std::int64_t lse_rest = kAbsent;     // float32: as large as partial_lse, or lse2
  std::int64_t dq_sum = kAbsent;       // backward: float32 [Hq][total_q][D to a multiple of 16]
  /// delta and lse2 lie in the memory of dq instead, which is written last, from dq_sum.
  bool statistics_in_dq = false;
  std::int64_t bytes = 0;
};

/// `counts_tiles`: as hopper_counts_tiles says.
GpuWorkspace gpu_workspace(const Problem& problem, std::int64_t num_splits,
                           bool counts_tiles = false);

/// Whether the scores need a full instance: an option touches them one by one, or a scale that is
/// not positive keeps the greatest product from being the greatest score.
bool needs_full(const Problem& problem);

/// Whether the kernels are those of float32: a warp a row instead of tiles.
bool row_kernels(const Problem& problem);

/// Tiles of query rows, or of keys, of one KV head: of one sequence when dense, over all sequences
/// at most when packed, where lengths are known on the device only.
std::int64_t query_tiles(const Problem& problem, std::int64_t tile);
std::int64_t key_tiles(const Problem& problem, std::int64_t tile);

/// Blocks without splits that sweep the queries (forward, dq) or the keys (backward): a tile each,
/// or `tile` rows each where a warp computes a row.
std::int64_t query_blocks(const Problem& problem, std::int64_t tile);
std::int64_t key_blocks(const Problem& problem, std::int64_t tile);

}  // namespace onchip::host
