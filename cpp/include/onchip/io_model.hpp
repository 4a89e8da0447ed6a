// SPDX-License-Identifier: Apache-2.0
// How many bytes attention moves, by hand-checkable formulas: no device, no cache, no plan.
#pragma once

#include <cstdint>

#include "onchip/export.h"
#include "onchip/status.hpp"

namespace onchip {

/// Bytes read from and written to device memory.
struct IoBytes {
  double read = 0;
  double written = 0;
  [[nodiscard]] double total() const { return read + written; }
};

/// Sums over the batch and all heads, except tile_bytes.
struct IoModel {
  double q_bytes = 0, k_bytes = 0, v_bytes = 0, out_bytes = 0, lse_bytes = 0;
  double scores_bytes = 0;    ///< The matrix S; P, dP and dS are as large.
  double tile_bytes = 0;      ///< One tile_q x tile_k tile of scores.
  double visible_scores = 0;  ///< Scores that the mask leaves.
  double tiles = 0;           ///< Tiles of the whole score matrix.
  double tiles_visited = 0;   ///< Tiles with a visible score: the others are skipped.
  double forward_flops = 0;   ///< Matrix products over visible scores.
  double backward_flops = 0;  ///< The same, with S computed again.
  IoBytes standard_forward;   ///< Q, K, V, O once; S and P written and read once.
  IoBytes tiled_forward;      ///< K and V read again for each query tile.
  IoBytes standard_backward;  ///< P read twice; dP written and read; dS written and read twice.
  IoBytes tiled_backward;     ///< Q, dO and the sums of dQ visited for each key tile.
};

/// q (batch, seqlen_q, heads_q, dim), k (batch, seqlen_k, heads_kv, dim), v likewise with dim_v, in
/// elements of 2, 4 or 8 bytes. Throws `Error` (invalid_argument) naming the argument.
ONCHIP_API IoModel io_model(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                            std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t dim,
                            std::int64_t dim_v, std::int64_t element_bytes, std::int64_t tile_q,
                            std::int64_t tile_k, bool causal);

}  // namespace onchip
