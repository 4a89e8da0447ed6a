// SPDX-License-Identifier: Apache-2.0
// The cost model: what an algorithm reads, writes and computes. Closed forms, no loops over rows.
#pragma once

#include <cstdint>

#include "host/problem.hpp"
#include "onchip/plan.hpp"

namespace onchip::host {

/// Which keys the queries of one sequence see: -left <= j - (i + keys - queries) <= right, with -1
/// for unlimited.
struct Span {
  std::int64_t queries = 0, keys = 0;
  std::int64_t left = -1, right = -1;

  /// The same mask seen from the keys: which queries each key is seen by.
  [[nodiscard]] Span transposed() const { return {keys, queries, right, left}; }
};

/// Tiles that hold a visible score, and keys in them, summed over the query tiles of one head.
struct Visits {
  double tiles = 0, keys = 0;
};

/// With `group` > 1 the rows of a tile are (query, head) pairs of `group` heads that share K and V.
Visits visit(const Span& span, std::int64_t tile_q, std::int64_t tile_k, std::int64_t group = 1);

/// Visible scores of one head.
double visible_scores(const Span& span);

/// A problem as the cost model sees it. Lengths that only the device knows are taken as equal
/// shares of the packed rows, or as the full capacity.
struct Workload {
  Pass pass = Pass::forward;
  double batch = 0, heads_q = 0, heads_kv = 0;
  Span span;                        // of one sequence
  double total_q = 0, total_k = 0;  // rows of all sequences
  double dim = 0, dim_v = 0;
  double element_bytes = 0;
  double stats_bytes = 4;  // of one lse value
  bool writes_lse = true;
  double bias_bytes = 0, dbias_bytes = 0;

  [[nodiscard]] double q_bytes() const { return total_q * heads_q * dim * element_bytes; }
  [[nodiscard]] double k_bytes() const { return total_k * heads_kv * dim * element_bytes; }
  [[nodiscard]] double v_bytes() const { return total_k * heads_kv * dim_v * element_bytes; }
  [[nodiscard]] double out_bytes() const { return total_q * heads_q * dim_v * element_bytes; }
  [[nodiscard]] double lse_bytes() const { return total_q * heads_q * stats_bytes; }
  /// The whole matrix S (or P, dS) of every head, in the element type.
  [[nodiscard]] double scores_bytes() const;
};

Workload workload_of(const Problem& problem);

/// How a tiled algorithm goes through a workload.
struct Tiling {
  std::int64_t tile_q = 1, tile_k = 1;
  std::int64_t packed_heads = 1;  // query heads that share a tile
  std::int64_t num_splits = 1;
  bool keys_outer = true;            // backward: K/V tiles stay and queries stream, or the reverse
  bool float32_accumulators = true;  // backward: sums wider than the element type
  double l2_bytes = 0;               // cache behind which re-reads cost nothing
};

struct Traffic {
  double read = 0, written = 0;
};

/// FLOP of the matrix products over visible scores, as the tiled algorithm does them.
double tiled_flops(const Workload& work);
/// The same where backward has P from memory and need not recompute S.
double standard_flops(const Workload& work);

Traffic tiled_traffic(const Workload& work, const Tiling& tiling);
/// Each of Q, K, V, O once; S and P each written and read once.
Traffic standard_traffic(const Workload& work);

Cost tiled_cost(const Workload& work, const Tiling& tiling, double workspace_bytes,
                const DeviceInfo& device);
Cost standard_cost(const Workload& work, const DeviceInfo& device);

/// FLOP per second that the device reaches with elements of this size.
double peak_flops(const DeviceInfo& device, double element_bytes);

}  // namespace onchip::host
