// SPDX-License-Identifier: Apache-2.0
// P and dS of one panel, recomputed from lse, and the gradients that need only them: dbias, dsinks.
#if defined(ONCHIP_CPU_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONCHIP_CPU_GRADIENT_INL_H_
#undef ONCHIP_CPU_GRADIENT_INL_H_
#else
#define ONCHIP_CPU_GRADIENT_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/masked-inl.h"
#include "cpu/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A tile with what the backward pass knows of each row.
template <class T>
struct GradientTile {
  alignas(64) T lse[host::kCpuTileQ];    // +inf for rows that see nothing, so that P is 0
  alignas(64) T delta[host::kCpuTileQ];  // dout.out - dlse
  QueryTile tile;
  PanelKeys keys[host::kCpuTileQ];  // by panel
  bool finite = true;               // q and dout hold no NaN or Inf
};

/// Packs q and dout of `state.tile` and reads lse, dlse and out. Rows whose lse is -inf see
/// nothing.
template <class T>
void load_gradient_tile(const Launch<T>& launch, const host::BackwardScratch<T>& scratch,
                        GradientTile<T>& state) {
  const host::Problem& p = launch.problem;
  const host::Operands& o = launch.operands;
  QueryTile& tile = state.tile;
  const Sequence& s = tile.sequence;
  const std::int64_t width = launch.width;
  std::fill_n(state.lse, host::kCpuTileQ, kInfinity<T>);
  std::fill_n(state.delta, host::kCpuTileQ, T{0});
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const T lse = load_element<T>(
        p.stats_dtype, o.lse, offset_of(p.lse, s.batch, s.q_start, tile.position[r], tile.head[r]));
    if (lse == -kInfinity<T>) tile.keys[r] = {};
    if (!tile.keys[r].empty()) state.lse[r] = lse;
  }
  pack_queries(launch, o.q, p.q, tile, p.dim, static_cast<T>(p.scale), scratch.row, scratch.q);
  pack_queries(launch, o.dout, p.dout, tile, p.dim_v, T{1}, scratch.row, scratch.dout);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    if (tile.keys[r].empty()) continue;
    load_row(p.dtype, o.out, offset_of(p.out, s.batch, s.q_start, tile.position[r], tile.head[r]),
             p.dim_v, scratch.row);
    const T* dout = scratch.dout + r / width * width * p.dim_v + r % width;
    double delta = 0;  // what is subtracted from it is often nearly as large
    for (std::int64_t e = 0; e < p.dim_v; ++e) {
      delta += static_cast<double>(scratch.row[e]) * dout[e * width];
    }
    if (p.has_dlse) {
      delta -= load_element<double>(
          p.stats_dtype, o.dlse,
          offset_of(p.dlse, s.batch, s.q_start, tile.position[r], tile.head[r]));
    }
    state.delta[r] = static_cast<T>(delta);
  }
  const std::int64_t lanes = (tile.rows + width - 1) / width * width;
  for (std::int64_t first = 0; first < lanes; first += width) {
    state.keys[first / width] = panel_keys(tile, first, width);
  }
  state.finite =
      all_finite(scratch.q, 1, lanes * p.dim, 0) && all_finite(scratch.dout, 1, lanes * p.dim_v, 0);
}

template <class T>
void pack_key_block(const Launch<T>& launch, const QueryTile& tile, KeyRange block,
                    const host::BackwardScratch<T>& scratch) {
  const host::Problem& p = launch.problem;
  pack_keys(launch, launch.operands.k, p.k, tile.sequence, tile.kv_head, block, p.dim, scratch.k);
  pack_keys(launch, launch.operands.v, p.v, tile.sequence, tile.kv_head, block, p.dim_v, scratch.v);
}

template <class T>
bool block_finite(const Launch<T>& launch, KeyRange block,
                  const host::BackwardScratch<T>& scratch) {
  const host::Problem& p = launch.problem;
  return all_finite(scratch.k, block.hi - block.lo, p.dim, host::tile_row<T>(p.dim)) &&
         all_finite(scratch.v, block.hi - block.lo, p.dim_v, host::tile_row<T>(p.dim_v));
}

/// Zeroes the rows of a panel that belong to keys of the block outside of j.
template <class T>
void clear_outside(KeyRange block, KeyRange j, std::int64_t width, T* panel) {
  if (j.empty()) j = {block.hi, block.hi};
  std::fill_n(panel, (j.lo - block.lo) * width, T{0});
  std::fill_n(panel + (j.hi - block.lo) * width, (block.hi - j.hi) * width, T{0});
}

/// to *= factor, `rows` panel rows.
template <class T>
void multiply(std::int64_t rows, std::int64_t width, const T* factor, T* to) {
  const Vec<T> d;
  for (std::int64_t at = 0; at < rows * width; at += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::Store(hn::Mul(hn::Load(d, to + at), hn::Load(d, factor + at)), d, to + at);
  }
}

/// From scores (in `weights`) and dP = V.dO (in `ds`) to the weights of dV and
/// dS = P (dP - delta), the gradient in the softmax's argument. Masked pairs become exactly 0.
template <bool kDropout, class T>
void softmax_gradient(const Launch<T>& launch, const GradientTile<T>& state, std::int64_t first,
                      KeyRange j, const T* keep, T* weights, T* ds) {
  const Vec<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const LaneBounds<T> bounds(state.tile, first, launch.width, j);
  const auto kept_scale = hn::Set(d, launch.kept_scale);
  for (std::int64_t lane = 0; lane < launch.width; lane += lanes) {
    const auto lse = hn::Load(d, state.lse + first + lane);
    const auto delta = hn::Load(d, state.delta + first + lane);
    for (std::int64_t key = 0; key < j.hi - j.lo; ++key) {
      const std::int64_t at = key * launch.width + lane;
      const auto visible = bounds.visible(key, lane);
      const auto score = hn::Load(d, weights + at);
      auto weight = hn::IfThenElseZero(visible, exp_nonpositive(d, hn::Sub(score, lse)));
      auto dp = hn::Load(d, ds + at);
      const auto p = weight;
      if constexpr (kDropout) {
        const auto factor = hn::Mul(hn::Load(d, keep + at), kept_scale);
        weight = hn::Mul(weight, factor);
        dp = hn::Mul(dp, factor);
      }
      hn::Store(weight, d, weights + at);
      hn::Store(hn::IfThenElseZero(visible, hn::Mul(p, hn::Sub(dp, delta))), d, ds + at);
    }
  }
}

/// P (with dropout, as dV needs it) and dS of the panel at row `first` for keys `j` of `block`.
template <bool kFull, class T>
void panel_gradient(const Launch<T>& launch, const GradientTile<T>& state, std::int64_t first,
                    KeyRange block, KeyRange j, const host::BackwardScratch<T>& scratch, T* weights,
                    T* ds) {
  const host::Problem& p = launch.problem;
  const std::int64_t v_row = host::tile_row<T>(p.dim_v);
  panel_scores<kFull>(launch, state.tile, first, state.keys[first / launch.width], j,
                      scratch.q + first * p.dim,
                      scratch.k + (j.lo - block.lo) * host::tile_row<T>(p.dim), scratch.bias,
                      p.softcap > 0 ? scratch.slope : nullptr, weights);
  gemm<true, Update::overwrite>(j.hi - j.lo, p.dim_v, scratch.v + (j.lo - block.lo) * v_row,
                                Walk{.row = v_row}, scratch.dout + first * p.dim_v, ds);
  if (kFull && p.dropout_p > 0) {
    load_keep(launch, state.tile, first, j, scratch.keep);
    softmax_gradient<true>(launch, state, first, j, scratch.keep, weights, ds);
  } else {
    softmax_gradient<false>(launch, state, first, j, static_cast<const T*>(nullptr), weights, ds);
  }
}

/// dsinks[h] = sum over rows of p_sink (dlse - dout.out): the sink's weight has no value to weigh.
template <class T>
void sink_gradient(const Launch<T>& launch, std::int64_t head, T* row) {
  const host::Problem& p = launch.problem;
  const host::Operands& o = launch.operands;
  const double logit = load_element<double>(p.stats_dtype, o.sinks, head * p.sinks);
  double sum = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_at(p, o, b);
    for (std::int64_t i = 0; i < s.q_len; ++i) {
      const double lse =
          load_element<double>(p.stats_dtype, o.lse, offset_of(p.lse, b, s.q_start, i, head));
      if (visible_keys(p, s, i).empty() || lse == -kInfinity<double>) continue;
      double delta = 0;
      const std::int64_t out = offset_of(p.out, b, s.q_start, i, head);
      load_row(p.dtype, o.dout, offset_of(p.dout, b, s.q_start, i, head), p.dim_v, row);
      for (std::int64_t e = 0; e < p.dim_v; ++e) {
        delta += static_cast<double>(row[e]) * load_element<double>(p.dtype, o.out, out + e);
      }
      if (p.has_dlse) {
        delta -=
            load_element<double>(p.stats_dtype, o.dlse, offset_of(p.dlse, b, s.q_start, i, head));
      }
      sum -= std::exp(logit - lse) * delta;
    }
  }
  store_element(p.stats_dtype, o.dsinks, head * p.dsinks, static_cast<T>(sum));
}

/// Tiles of dbias, each summed by one task over all that broadcasts onto it: no two tasks write one
/// element, so the sum has one order.
struct BiasTiles {
  std::int64_t rows, cols;  // tiles along i and j
  BiasTiles(const host::Problem& p, const host::CpuPlan& plan)
      : rows((p.bias_shape.row + plan.tile_q - 1) / plan.tile_q),
        cols((p.bias_shape.col + plan.tile_k - 1) / plan.tile_k) {}
};

inline std::int64_t bias_tasks(const host::Problem& p, const host::CpuPlan& plan) {
  const BiasTiles tiles(p, plan);
  return p.bias_shape.batch * p.bias_shape.head * tiles.rows * tiles.cols;
}

/// Adds dS of the tile of rows in `state` and the keys in `block` to sums [Bc][Br], where broadcast
/// axes have one row or one column.
template <bool kFull, class T>
void add_bias_gradient(const Launch<T>& launch, const GradientTile<T>& state, KeyRange block,
                       const host::BackwardScratch<T>& scratch) {
  const host::Problem& p = launch.problem;
  const std::int64_t width = launch.width;
  const bool sum_rows = p.bias_shape.row == 1;
  const bool sum_cols = p.bias_shape.col == 1;
  for (std::int64_t first = 0; first < state.tile.rows; first += width) {
    const KeyRange j = intersect(state.keys[first / width].any, block);
    if (j.empty()) continue;
    panel_gradient<kFull>(launch, state, first, block, j, scratch, scratch.p, scratch.ds);
    for (std::int64_t key = j.lo; key < j.hi; ++key) {
      const T* ds = scratch.ds + (key - j.lo) * width;
      double* to = scratch.dbias + (sum_cols ? 0 : key - block.lo) * launch.plan.tile_q;
      for (std::int64_t lane = 0; lane < std::min(width, state.tile.rows - first); ++lane) {
        to[sum_rows ? 0 : first + lane] += ds[lane];
      }
    }
  }
}

/// One tile of dbias: the sum over every batch, head, row and key that it was broadcast to.
template <class T>
void bias_gradient(const Launch<T>& launch, std::int64_t task,
                   const host::BackwardScratch<T>& scratch) {
  const host::Problem& p = launch.problem;
  const host::BiasShape& shape = p.bias_shape;
  const std::int64_t tile_q = launch.plan.tile_q;
  const std::int64_t tile_k = launch.plan.tile_k;
  const BiasTiles tiles(p, launch.plan);
  const std::int64_t col = task % tiles.cols * tile_k;
  const std::int64_t row = task / tiles.cols % tiles.rows * tile_q;
  const std::int64_t head = task / (tiles.cols * tiles.rows) % shape.head;
  const std::int64_t batch = task / (tiles.cols * tiles.rows * shape.head);
  std::fill_n(scratch.dbias, tile_q * tile_k, 0.0);
  GradientTile<T> state;
  for (std::int64_t b = batch; b < p.batch; b += shape.batch) {
    const Sequence s = sequence_at(p, launch.operands, b);
    const std::int64_t row_end = shape.row == 1 ? s.q_rows : std::min(s.q_rows, row + tile_q);
    for (std::int64_t h = head; h < p.heads_q; h += shape.head) {
      for (std::int64_t i = row; i < row_end; i += tile_q) {
        set_rows(p, s, h, i, std::min(tile_q, s.q_rows - i), state.tile);
        const KeyRange want =
            shape.col == 1 ? state.tile.reach : intersect(state.tile.reach, {col, col + tile_k});
        if (want.empty()) continue;
        load_gradient_tile(launch, scratch, state);
        for (std::int64_t at = want.lo; at < want.hi; at += tile_k) {
          const KeyRange block = intersect({at, at + tile_k}, want);
          // A block that is one tile of dbias counts from the tile's first column.
          const KeyRange from{shape.col == 1 ? block.lo : col, block.hi};
          pack_key_block(launch, state.tile, from, scratch);
          add_bias_gradient<true>(launch, state, from, scratch);
        }
      }
    }
  }
  for (std::int64_t i = row; i < std::min(row + tile_q, shape.row); ++i) {
    for (std::int64_t j = col; j < std::min(col + tile_k, shape.col); ++j) {
      store_element(p.bias_dtype, launch.operands.dbias,
                    batch * p.dbias.batch + head * p.dbias.head + i * p.dbias.row + j * p.dbias.col,
                    scratch.dbias[(j - col) * tile_q + i - row]);
    }
  }
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
