// SPDX-License-Identifier: Apache-2.0
// The normalised problem: what validation makes of the caller's `Attention`, and all that planner
// and backends look at. Plain data, compared as a whole to see that a launch fits its plan.
#pragma once

#include <cstdint>

#include "onchip/attention.hpp"

namespace onchip::host {

/// Element strides of a (batch, row, head, dim) tensor whose last stride is 1.
/// Packed layouts have batch 0: their rows start at cu_seqlens[b]. Paged: batch is the page stride.
struct Strides {
  std::int64_t batch = 0, row = 0, head = 0;
  friend bool operator==(const Strides&, const Strides&) = default;
};

/// Element strides of a (B|1, Hq|1, Sq|1, Sk|1) bias; 0 on broadcast axes.
struct BiasStrides {
  std::int64_t batch = 0, head = 0, row = 0, col = 0;
  friend bool operator==(const BiasStrides&, const BiasStrides&) = default;
};

/// Extents of a dbias tensor: each the full extent or 1.
struct BiasShape {
  std::int64_t batch = 1, head = 1, row = 1, col = 1;
  friend bool operator==(const BiasShape&, const BiasShape&) = default;
};

struct Problem {
  Pass pass = Pass::forward;
  DType dtype = DType::none;        // q, k, v, out and their gradients
  DType stats_dtype = DType::none;  // lse, dlse, alibi_slopes, sinks, dsinks
  DType bias_dtype = DType::none;   // none: no bias
  Device device;

  bool packed = false;  // cu_seqlens given: rows of all sequences in one axis
  bool paged = false;   // block_table given
  std::int64_t batch = 0, heads_q = 0, heads_kv = 0, dim = 0, dim_v = 0;
  std::int64_t seqlen_q = 0;  // dense: Sq; packed: greatest length (hint, else the total)
  std::int64_t hint_q = 0;    // packed: max_seqlen_q as given; 0: none
  std::int64_t seqlen_k = 0;  // dense: Sk; paged: max_pages * page_size; packed: as seqlen_q
  std::int64_t total_q = 0;   // rows of q: B * Sq, or Tq when packed
  std::int64_t total_k = 0;   // rows of k: B * Sk, Tk, or pages * page_size
  std::int64_t page_size = 0, num_pages = 0, max_pages = 0;

  double scale = 1.0, softcap = 0.0;
  std::int64_t window_left = -1, window_right = -1;  // causal is folded into window_right
  double dropout_p = 0.0;
  bool deterministic = false;
  std::int32_t num_splits = 1;
  Softmax softmax = Softmax::automatic;
  std::int64_t split_size = 0;

  bool has_cu_seqlens_k = false, has_seqused_q = false, has_seqused_k = false;
  bool has_alibi = false, has_sinks = false, has_lse = false, has_dlse = false;
  bool has_dbias = false, has_dsinks = false;

  Strides q, k, v, out, dout, dq, dk, dv;
  Strides lse, dlse;  // lse (B, Hq, Sq) or (Hq, Tq): `row` is the stride along the sequence
  BiasStrides bias, dbias;
  BiasShape bias_shape;
  std::int64_t alibi_batch = 0, alibi_head = 0;
  std::int64_t sinks = 0, dsinks = 0;
  std::int64_t cu_seqlens_q = 0, cu_seqlens_k = 0, seqused_q = 0, seqused_k = 0;
  std::int64_t block_table_batch = 0, block_table_page = 0;

  [[nodiscard]] bool causal() const { return window_right == 0 && window_left < 0; }
  friend bool operator==(const Problem&, const Problem&) = default;
};

/// The pointers of one launch, and the options that may change between launches. Null: not given.
struct Operands {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *bias = nullptr;
  const void *alibi_slopes = nullptr, *sinks = nullptr;
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;
  const std::int32_t *seqused_q = nullptr, *seqused_k = nullptr, *block_table = nullptr;
  void *out = nullptr, *lse = nullptr;  // read-only in backward
  const void *dout = nullptr, *dlse = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr, *dbias = nullptr, *dsinks = nullptr;
  std::uint64_t seed = 0, offset = 0;
};

/// Strides of a (batch, row, head, dim) tensor, or (row, head, dim) when packed.
Strides row_strides(const TensorView& view);

/// Strides of lse: (batch, head, row), or (head, row) when packed.
Strides lse_strides(const TensorView& view);

/// Checks everything that can be checked without reading memory. Throws `Error` naming the
/// argument. Null data pointers pass: planning does not need memory.
Problem normalise(const Attention& attention, Pass pass);

/// Checks that every tensor with elements has memory and that what is written shares none with
/// another tensor, and takes the pointers.
Operands bind(const Attention& attention, const Problem& problem);

/// The problem of a launch must be the one that was planned. Throws `Error` naming what differs.
void check_planned(const Problem& planned, const Problem& now);

/// round(65536 p): lanes below it are dropped. The kept weights are scaled by
/// 1 / (1 - threshold / 65536), which is exact for what was really dropped.
std::uint32_t dropout_threshold(double p);

/// p must be in [0, 1) and keep at least one lane. Throws `Error` naming the argument.
void check_dropout(const char* name, double p);

/// Parts of merge_states, normalised: out and parts share one dtype and shape.
struct MergeProblem {
  DType dtype = DType::none, stats_dtype = DType::none;
  Device device;
  std::int64_t batch = 0, rows = 0, heads = 0, dim_v = 0;
  Strides out, lse;
};

}  // namespace onchip::host
