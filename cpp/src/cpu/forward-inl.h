// SPDX-License-Identifier: Apache-2.0
// Forward pass: for each tile of query rows, one sweep over the keys with the running softmax
// state (m, l, u). docs/algorithm.md derives it in these names; here u is the panel `o`.
#if defined(ONCHIP_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONCHIP_CPU_FORWARD_INL_H_
#undef ONCHIP_CPU_FORWARD_INL_H_
#else
#define ONCHIP_CPU_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/masked-inl.h"
#include "cpu/parallel.hpp"
#include "cpu/score-inl.h"
#include "cpu/tile_index.hpp"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Running softmax of a tile: m = max, l = sum of e^(s - m), per row.
template <class T>
struct SoftmaxState {
  alignas(64) T m[host::kCpuTileQ];
  alignas(64) T l[host::kCpuTileQ];
  alignas(64) T alpha[host::kCpuTileQ];  // e^(old m - new m): what becomes of l and u
};

/// Takes `count` keys into the state of one vector of rows: scores become weights e^(s - m).
template <class T>
HWY_INLINE void online_softmax(std::int64_t count, std::int64_t width, T* scores, T* m, T* l,
                               T* alpha) {
  const Vec<T> d;
  const auto old_m = hn::Load(d, m);
  auto max0 = old_m;
  auto max1 = old_m;
  std::int64_t row = 0;
  for (; row + 2 <= count; row += 2) {
    max0 = hn::Max(max0, hn::Load(d, scores + row * width));
    max1 = hn::Max(max1, hn::Load(d, scores + (row + 1) * width));
  }
  if (row < count) max0 = hn::Max(max0, hn::Load(d, scores + row * width));
  const auto new_m = hn::Max(max0, max1);
  // A row that has seen nothing yet keeps m = -inf; -inf - (-inf) must not become NaN.
  const auto base = hn::IfThenElse(hn::Eq(new_m, hn::Set(d, -kInfinity<T>)), hn::Zero(d), new_m);
  const auto scale = exp_nonpositive(d, hn::Sub(old_m, base));
  auto sum = hn::Zero(d);
  for (row = 0; row < count; ++row) {
    T* at = scores + row * width;
    const auto weight = exp_nonpositive(d, hn::Sub(hn::Load(d, at), base));
    sum = hn::Add(sum, weight);
    hn::Store(weight, d, at);
  }
  hn::Store(new_m, d, m);
  hn::Store(hn::MulAdd(hn::Load(d, l), scale, sum), d, l);
  hn::Store(scale, d, alpha);
}

/// Weights that dropout drops become 0 (after the sum: lse is that without dropout).
template <class T>
void drop_weights(const Launch<T>& launch, const QueryTile& tile, std::int64_t first, KeyRange j,
                  T* weights) {
  const host::Problem& p = launch.problem;
  for (std::int64_t lane = 0; lane < std::min(launch.width, tile.rows - first); ++lane) {
    const std::int64_t r = first + lane;
    const std::int64_t batch_head = tile.sequence.batch * p.heads_q + tile.head[r];
    PhiloxWords words{};
    for (std::int64_t key = j.lo; key < j.hi; ++key) {
      if (key == j.lo || key % 8 == 0) {
        words = dropout_words(key, tile.position[r], batch_head, launch.operands.seed,
                              launch.operands.offset);
      }
      if (dropout_lane(words, key) < launch.dropout_threshold) {
        weights[(key - j.lo) * launch.width + lane] = 0;
      }
    }
  }
}

/// One block of packed keys into every panel of the tile.
template <bool kFull, class T>
void forward_keys(const Launch<T>& launch, const QueryTile& tile, KeyRange block,
                  const host::ForwardScratch<T>& scratch, SoftmaxState<T>& state) {
  const host::Problem& p = launch.problem;
  const std::int64_t width = launch.width;
  const std::int64_t k_row = host::tile_row<T>(p.dim);
  const std::int64_t v_row = host::tile_row<T>(p.dim_v);
  for (std::int64_t first = 0; first < tile.rows; first += width) {
    const PanelKeys keys = panel_keys(tile, first, width);
    const KeyRange j = intersect(keys.any, block);
    if (j.empty()) continue;
    panel_scores<kFull>(launch, tile, first, keys, j, scratch.q + first * p.dim,
                        scratch.k + (j.lo - block.lo) * k_row, scratch.bias,
                        static_cast<T*>(nullptr), scratch.scores);
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(Vec<T>()));
    for (std::int64_t lane = first; lane < first + width; lane += lanes) {
      online_softmax(j.hi - j.lo, width, scratch.scores + (lane - first), state.m + lane,
                     state.l + lane, state.alpha + lane);
    }
    if (kFull && p.dropout_p > 0) drop_weights(launch, tile, first, j, scratch.scores);
    const T* v = scratch.v + (j.lo - block.lo) * v_row;
    T* o = scratch.o + first * p.dim_v;
    const bool masked = j.lo < keys.all.lo || j.hi > keys.all.hi;
    if (masked && !all_finite(v, j.hi - j.lo, p.dim_v, v_row)) {
      masked_gemm_lanes(tile, first, j, p.dim_v, v, v_row, scratch.scores, o, state.alpha + first);
    } else {
      gemm<false, Update::scale>(p.dim_v, j.hi - j.lo, v, Walk{.depth = v_row}, scratch.scores, o,
                                 state.alpha + first);
    }
  }
}

/// A finished row of the whole softmax.
template <class T>
void store_result(const Launch<T>& launch, const QueryTile& tile, std::int64_t r, const T* row,
                  T lse) {
  const host::Problem& p = launch.problem;
  const Sequence& s = tile.sequence;
  const std::int64_t i = tile.position[r];
  const std::int64_t h = tile.head[r];
  store_row(p.dtype, row, p.dim_v, launch.operands.out, offset_of(p.out, s.batch, s.q_start, i, h));
  if (launch.operands.lse == nullptr) return;
  store_element(p.stats_dtype, launch.operands.lse, offset_of(p.lse, s.batch, s.q_start, i, h),
                lse);
}

/// A finished row of one split: kept in the workspace for combine_splits.
template <class T>
void store_partial(const Launch<T>& launch, const host::SharedScratch<T>& shared,
                   const QueryTile& tile, std::int64_t split, std::int64_t r, const T* row, T lse) {
  const host::Problem& p = launch.problem;
  const std::int64_t at = split * p.total_q * p.heads_q + partial_row(p, tile, r);
  std::copy_n(row, p.dim_v, shared.partial_out + at * p.dim_v);
  shared.partial_lse[at] = lse;
}

/// out = u / l and lse = m + log l, with the sink in l where there is one. A row that sees
/// no key gets 0 and -inf.
template <class T>
void finish_tile(const Launch<T>& launch, const QueryTile& tile,
                 const host::ForwardScratch<T>& scratch, const SoftmaxState<T>& state,
                 const host::SharedScratch<T>& shared, std::int64_t split) {
  const host::Problem& p = launch.problem;
  const std::int64_t width = launch.width;
  const bool whole = launch.plan.num_splits == 1;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    T m = state.m[r];
    T l = state.l[r];
    T factor = launch.kept_scale;
    const bool sees_nothing = tile.keys[r].empty() || l == T{0};
    if (p.has_sinks && whole && !sees_nothing) {
      const T logit = load_element<T>(p.stats_dtype, launch.operands.sinks, tile.head[r] * p.sinks);
      const T top = std::max(m, logit);
      factor *= std::exp(m - top);
      l = l * std::exp(m - top) + std::exp(logit - top);
      m = top;
    }
    factor = sees_nothing ? T{0} : factor / l;
    const T* o = scratch.o + r / width * width * p.dim_v + r % width;
    for (std::int64_t e = 0; e < p.dim_v; ++e) {
      scratch.row[e] = sees_nothing ? T{0} : o[e * width] * factor;
    }
    const T lse = sees_nothing ? -kInfinity<T> : m + std::log(l);
    if (whole) {
      store_result(launch, tile, r, scratch.row, lse);
    } else {
      store_partial(launch, shared, tile, split, r, scratch.row, lse);
    }
  }
}

template <bool kFull, class T>
void forward_tile(const Launch<T>& launch, const QueryTile& tile, std::int64_t split,
                  const host::ForwardScratch<T>& scratch, const host::SharedScratch<T>& shared) {
  const host::Problem& p = launch.problem;
  const host::CpuPlan& plan = launch.plan;
  SoftmaxState<T> state;
  std::fill_n(state.m, host::kCpuTileQ, -kInfinity<T>);
  std::fill_n(state.l, host::kCpuTileQ, T{0});
  std::fill_n(scratch.o, plan.tile_q * p.dim_v, T{0});
  KeyRange part{0, tile.sequence.k_len};
  if (plan.num_splits > 1) part = {split * plan.split_size, (split + 1) * plan.split_size};
  const KeyRange reach = intersect(tile.reach, part);
  if (!reach.empty()) {
    pack_queries(launch, launch.operands.q, p.q, tile, p.dim, static_cast<T>(p.scale), scratch.row,
                 scratch.q);
  }
  // Blocks begin at multiples of Bc of the part, so that a row's bits do not depend on its tile.
  const std::int64_t skipped = reach.empty() ? 0 : (reach.lo - part.lo) / plan.tile_k;
  for (std::int64_t at = part.lo + skipped * plan.tile_k; at < reach.hi; at += plan.tile_k) {
    const KeyRange block = intersect({at, at + plan.tile_k}, reach);
    pack_keys(launch, launch.operands.k, p.k, tile.sequence, tile.kv_head, block, p.dim, scratch.k);
    pack_keys(launch, launch.operands.v, p.v, tile.sequence, tile.kv_head, block, p.dim_v,
              scratch.v);
    forward_keys<kFull>(launch, tile, block, scratch, state);
  }
  finish_tile(launch, tile, scratch, state, shared, split);
}

/// out and lse of every row from its splits' partial results.
template <class T>
void combine_splits(const Launch<T>& launch, const host::SharedScratch<T>& shared, T* row,
                    const QueryTile& tile) {
  const host::Problem& p = launch.problem;
  const std::int64_t stride = p.total_q * p.heads_q;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t at = partial_row(p, tile, r);
    T top = -kInfinity<T>;
    for (std::int64_t split = 0; split < launch.plan.num_splits; ++split) {
      top = std::max(shared.partial_lse[split * stride + at], top);
    }
    T logit = -kInfinity<T>;
    if (p.has_sinks && top > -kInfinity<T>) {
      logit = load_element<T>(p.stats_dtype, launch.operands.sinks, tile.head[r] * p.sinks);
    }
    top = std::max(logit, top);
    const T base = top == -kInfinity<T> ? T{0} : top;
    T sum = std::exp(logit - base);
    std::fill_n(row, p.dim_v, T{0});
    for (std::int64_t split = 0; split < launch.plan.num_splits; ++split) {
      const std::int64_t part = split * stride + at;
      const T weight = std::exp(shared.partial_lse[part] - base);
      if (weight == T{0}) continue;
      sum += weight;
      const T* partial = shared.partial_out + part * p.dim_v;
      for (std::int64_t e = 0; e < p.dim_v; ++e) row[e] += weight * partial[e];
    }
    for (std::int64_t e = 0; sum != T{0} && e < p.dim_v; ++e) row[e] /= sum;
    store_result(launch, tile, r, row, sum == T{0} ? -kInfinity<T> : base + std::log(sum));
  }
}

/// Tokens of a packed batch that belong to no sequence.
template <class T>
void clear_unused_rows(const Launch<T>& launch, T* row) {
  const host::Problem& p = launch.problem;
  std::fill_n(row, p.dim_v, T{0});
  for_unused_rows(p, launch.operands.cu_seqlens_q, p.cu_seqlens_q, p.total_q, [&](std::int64_t i) {
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      store_row(p.dtype, row, p.dim_v, launch.operands.out, offset_of(p.out, 0, 0, i, h));
      if (launch.operands.lse == nullptr) continue;
      store_element(p.stats_dtype, launch.operands.lse, offset_of(p.lse, 0, 0, i, h),
                    -kInfinity<T>);
    }
  });
}

template <class T>
void forward(const host::Problem& problem, const host::CpuPlan& plan,
             const host::Operands& operands, void* workspace) {
  const Launch<T> launch(problem, operands, plan);
  host::Arena arena(workspace);
  const host::SharedScratch<T> shared(arena, problem, plan);
  const TileIndex index(problem, operands, plan.tile_q, shared.first_tile);
  auto* slices = static_cast<std::byte*>(workspace) + plan.shared_bytes;
  const auto scratch_of = [&](std::int32_t worker) {
    host::Arena slice(slices + plan.scratch_bytes * static_cast<std::size_t>(worker));
    return host::ForwardScratch<T>(slice, problem, plan);
  };

  auto sweep = [&](std::int32_t worker, std::int64_t task) {
    QueryTile tile;
    index.set(task / plan.num_splits, tile);
    const auto scratch = scratch_of(worker);
    if (launch.full()) {
      forward_tile<true>(launch, tile, task % plan.num_splits, scratch, shared);
    } else {
      forward_tile<false>(launch, tile, task % plan.num_splits, scratch, shared);
    }
  };
  parallel_for(plan.threads, index.tiles() * plan.num_splits, sweep);

  auto combine = [&](std::int32_t worker, std::int64_t task) {
    QueryTile tile;
    index.set(task, tile);
    combine_splits(launch, shared, scratch_of(worker).row, tile);
  };
  if (plan.num_splits > 1) parallel_for(plan.threads, index.tiles(), combine);
  if (problem.packed) clear_unused_rows(launch, scratch_of(0).row);
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
