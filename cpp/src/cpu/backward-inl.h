// SPDX-License-Identifier: Apache-2.0
// Backward pass: for each tile of query rows, one sweep over the keys that recomputes P from lse.
// dQ of the tile stays in scratch; dK and dV of a head gather in accumulators that one worker owns.
#if defined(ONCHIP_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONCHIP_CPU_BACKWARD_INL_H_
#undef ONCHIP_CPU_BACKWARD_INL_H_
#else
#define ONCHIP_CPU_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/gradient-inl.h"
#include "cpu/parallel.hpp"
#include "cpu/tile_index.hpp"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Keys of one product into dK or dV: a multiple of kRowsOfC.
inline constexpr std::int64_t kKeyRun = 24;

/// Packs query-side rows into panels of columns [dim / W][Br][W]; rows that see nothing, lanes past
/// the last row and columns past the last become 0.
template <class T>
void pack_columns(const Launch<T>& launch, const void* base, const host::Strides& strides,
                  const QueryTile& tile, std::int64_t dim, T* row, T* to) {
  const std::int64_t width = launch.width;
  const Sequence& s = tile.sequence;
  std::fill_n(to, launch.plan.tile_q * ((dim + width - 1) / width * width), T{0});
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    if (tile.keys[r].empty()) continue;
    load_row(launch.problem.dtype, base,
             offset_of(strides, s.batch, s.q_start, tile.position[r], tile.head[r]), dim, row);
    for (std::int64_t e = 0; e < dim; e += width) {
      std::copy_n(row + e, std::min(width, dim - e), to + (e * launch.plan.tile_q + r * width));
    }
  }
}

/// c (keys of the block x dim, in panels of columns, `c_panel` apart) += weights * rows, where
/// weights[key][row] are panels of query rows and rows[row][column] panels of columns.
template <class T>
void add_key_gradient(const Launch<T>& launch, const GradientTile<T>& state, KeyRange block,
                      bool poisoned, std::int64_t dim, const T* weights, const T* rows, T* c,
                      std::int64_t c_panel) {
  const QueryTile& tile = state.tile;
  const std::int64_t width = launch.width;
  const std::int64_t panels = (tile.rows + width - 1) / width;
  const std::int64_t weight_panel = launch.plan.tile_k * width;
  for (std::int64_t column = 0; column < dim; column += width, rows += launch.plan.tile_q * width) {
    T* to = c + column / width * c_panel;
    if (poisoned) {
      masked_gemm_rows(tile, block, weights, weight_panel, rows, to);
      continue;
    }
    // Keys in short runs: under a causal mask each run meets only some of the panels.
    for (std::int64_t key = block.lo; key < block.hi; key += kKeyRun) {
      const KeyRange run{key, std::min(key + kKeyRun, block.hi)};
      std::int64_t begin = 0;
      std::int64_t end = panels;
      while (begin < end && intersect(state.keys[begin].any, run).empty()) ++begin;
      while (begin < end && intersect(state.keys[end - 1].any, run).empty()) --end;
      if (begin == end) continue;
      const Walk walk{.row = width, .segment = width, .segment_stride = weight_panel};
      gemm<true, Update::add>(run.hi - run.lo, (end - begin) * width,
                              weights + begin * weight_panel + (run.lo - block.lo) * width, walk,
                              rows + begin * width * width, to + (run.lo - block.lo) * width);
    }
  }
}

/// One block of packed keys against the whole tile: P and dS of every panel, then the three
/// gradients.
template <bool kFull, class T>
void backward_keys(const Launch<T>& launch, const GradientTile<T>& state, KeyRange block,
                   const host::BackwardScratch<T>& scratch, const host::KeyGradients<T>& sums) {
  const host::Problem& p = launch.problem;
  const QueryTile& tile = state.tile;
  const std::int64_t width = launch.width;
  const std::int64_t k_row = host::tile_row<T>(p.dim);
  const std::int64_t panel_stride = launch.plan.tile_k * width;
  bool masked = false;
  for (std::int64_t first = 0; first < tile.rows; first += width) {
    const PanelKeys& keys = state.keys[first / width];
    const KeyRange j = intersect(keys.any, block);
    masked = masked || j.lo < keys.all.lo || j.hi > keys.all.hi || j.empty();
  }
  const bool poisoned = masked && (!state.finite || !block_finite(launch, block, scratch));
  for (std::int64_t first = 0; first < tile.rows; first += width) {
    const KeyRange j = intersect(state.keys[first / width].any, block);
    T* weights = scratch.p + first / width * panel_stride;
    T* ds = scratch.ds + first / width * panel_stride;
    clear_outside(block, j, width, weights);
    clear_outside(block, j, width, ds);
    if (j.empty()) continue;
    weights += (j.lo - block.lo) * width;
    ds += (j.lo - block.lo) * width;
    panel_gradient<kFull>(launch, state, first, block, j, scratch, weights, ds);
    if (kFull && p.softcap > 0) multiply(j.hi - j.lo, width, scratch.slope, ds);
    const T* k = scratch.k + (j.lo - block.lo) * k_row;
    T* dq = scratch.dq + first * p.dim;
    if (poisoned) {
      masked_gemm_lanes(tile, first, j, p.dim, k, k_row, ds, dq, static_cast<const T*>(nullptr));
    } else {
      gemm<false, Update::add>(p.dim, j.hi - j.lo, k, Walk{.depth = k_row}, ds, dq);
    }
  }
  const std::int64_t c_panel = p.seqlen_k * width;
  add_key_gradient(launch, state, block, poisoned, p.dim_v, scratch.p, scratch.dout_rows,
                   sums.dv + block.lo * width, c_panel);
  add_key_gradient(launch, state, block, poisoned, p.dim, scratch.ds, scratch.q_rows,
                   sums.dk + block.lo * width, c_panel);
}

template <bool kFull, class T>
void backward_tile(const Launch<T>& launch, GradientTile<T>& state,
                   const host::BackwardScratch<T>& scratch, const host::KeyGradients<T>& sums) {
  const host::Problem& p = launch.problem;
  const QueryTile& tile = state.tile;
  const std::int64_t width = launch.width;
  std::fill_n(scratch.dq, launch.plan.tile_q * p.dim, T{0});
  if (!tile.reach.empty()) {
    load_gradient_tile(launch, scratch, state);
    pack_columns(launch, launch.operands.q, p.q, tile, p.dim, scratch.row, scratch.q_rows);
    pack_columns(launch, launch.operands.dout, p.dout, tile, p.dim_v, scratch.row,
                 scratch.dout_rows);
  }
  const std::int64_t start = tile.reach.lo / launch.plan.tile_k * launch.plan.tile_k;
  for (std::int64_t at = start; at < tile.reach.hi; at += launch.plan.tile_k) {
    const KeyRange block = intersect({at, at + launch.plan.tile_k}, tile.reach);
    pack_key_block(launch, tile, block, scratch);
    backward_keys<kFull>(launch, state, block, scratch, sums);
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const T* dq = scratch.dq + r / width * width * p.dim + r % width;
    for (std::int64_t e = 0; e < p.dim; ++e)
      scratch.row[e] = dq[e * width] * static_cast<T>(p.scale);
    store_row(p.dtype, scratch.row, p.dim, launch.operands.dq,
              offset_of(p.dq, tile.sequence.batch, tile.sequence.q_start, tile.position[r],
                        tile.head[r]));
  }
}

/// Rows [j.lo, j.hi) of dK or dV of one head: the sum of `parts` accumulators, `stride` elements
/// apart, times `scale`. Keys beyond k_len get 0.
template <class T>
void store_key_gradient(const Launch<T>& launch, const Sequence& s, std::int64_t kv_head,
                        KeyRange j, const T* sums, std::int64_t parts, std::int64_t stride,
                        std::int64_t dim, T scale, T* row, void* to, const host::Strides& strides) {
  const std::int64_t width = launch.width;
  const std::int64_t panel = launch.problem.seqlen_k * width;
  for (std::int64_t key = j.lo; key < j.hi; ++key) {
    std::fill_n(row, dim, T{0});
    for (std::int64_t part = 0; key < s.k_len && part < parts; ++part) {
      const T* from = sums + part * stride + key * width;
      for (std::int64_t e = 0; e < dim; ++e) row[e] += from[e / width * panel + e % width];
    }
    for (std::int64_t e = 0; e < dim; ++e) row[e] *= scale;
    store_row(launch.problem.dtype, row, dim, to,
              offset_of(strides, s.batch, s.k_start, key, kv_head));
  }
}

/// The work of one (sequence, KV head, chunk): every `chunks`-th tile of the head.
template <class T>
void backward_head(const Launch<T>& launch, const Sequence& s, std::int64_t kv_head,
                   std::int64_t chunk, const host::BackwardScratch<T>& scratch,
                   const host::KeyGradients<T>& sums) {
  const host::Problem& p = launch.problem;
  const std::int64_t panel = p.seqlen_k * launch.width;
  const auto clear = [&](T* sum, std::int64_t dim) {
    for (std::int64_t column = 0; column < dim; column += launch.width, sum += panel) {
      std::fill_n(sum, s.k_len * launch.width, T{0});
    }
  };
  clear(sums.dk, p.dim);
  clear(sums.dv, p.dim_v);
  GradientTile<T> state;
  const std::int64_t tiles = tiles_of(s, p.heads_q / p.heads_kv, launch.plan.tile_q);
  for (std::int64_t index = chunk; index < tiles; index += launch.plan.chunks) {
    set_tile(p, s, kv_head, index, launch.plan.tile_q, state.tile);
    if (launch.full()) {
      backward_tile<true>(launch, state, scratch, sums);
    } else {
      backward_tile<false>(launch, state, scratch, sums);
    }
  }
}

/// Gradients of packed tokens that belong to no sequence are 0.
template <class T>
void clear_unused_gradients(const Launch<T>& launch, T* row) {
  const host::Problem& p = launch.problem;
  const host::Operands& o = launch.operands;
  std::fill_n(row, std::max(p.dim, p.dim_v), T{0});
  const auto clear = [&](void* to, const host::Strides& strides, std::int64_t heads,
                         std::int64_t dim) {
    return [=, &p](std::int64_t i) {
      for (std::int64_t h = 0; h < heads; ++h)
        store_row(p.dtype, row, dim, to, offset_of(strides, 0, 0, i, h));
    };
  };
  for_unused_rows(p, o.cu_seqlens_q, p.cu_seqlens_q, p.total_q,
                  clear(o.dq, p.dq, p.heads_q, p.dim));
  for_unused_rows(p, o.cu_seqlens_k, p.cu_seqlens_k, p.total_k,
                  clear(o.dk, p.dk, p.heads_kv, p.dim));
  for_unused_rows(p, o.cu_seqlens_k, p.cu_seqlens_k, p.total_k,
                  clear(o.dv, p.dv, p.heads_kv, p.dim_v));
}

/// The workspace of a backward launch: shared accumulators first, then one slice a worker.
template <class T>
class BackwardWorkspace {
 public:
  BackwardWorkspace(const Launch<T>& launch, void* workspace)
      : launch_(launch), base_(static_cast<std::byte*>(workspace)) {}

  [[nodiscard]] host::BackwardScratch<T> scratch(std::int32_t worker) const {
    host::Arena slice(slice_of(worker));
    return host::BackwardScratch<T>(slice, launch_.problem, launch_.plan);
  }
  /// Accumulators of (head, chunk): the worker's own where a head has one chunk.
  [[nodiscard]] host::KeyGradients<T> sums(std::int32_t worker, std::int64_t head,
                                           std::int64_t chunk) const {
    if (launch_.plan.chunks == 1) {
      host::Arena arena(slice_of(worker));
      host::BackwardScratch<T>(arena, launch_.problem, launch_.plan);
      return host::KeyGradients<T>(arena, launch_.problem);
    }
    host::Arena arena(base_ + static_cast<std::size_t>(head * launch_.plan.chunks + chunk) *
                                  stride_bytes());
    return host::KeyGradients<T>(arena, launch_.problem);
  }
  /// Elements between the accumulators of two chunks.
  [[nodiscard]] std::int64_t stride() const {
    return static_cast<std::int64_t>(stride_bytes() / sizeof(T));
  }

 private:
  [[nodiscard]] std::byte* slice_of(std::int32_t worker) const {
    return base_ + launch_.plan.shared_bytes +
           launch_.plan.scratch_bytes * static_cast<std::size_t>(worker);
  }
  [[nodiscard]] std::size_t stride_bytes() const {
    host::Arena count(nullptr);
    host::KeyGradients<T>(count, launch_.problem);
    return count.used();
  }

  const Launch<T>& launch_;
  std::byte* base_;
};

template <class T>
void backward(const host::Problem& problem, const host::CpuPlan& plan,
              const host::Operands& operands, void* workspace) {
  const Launch<T> launch(problem, operands, plan);
  const BackwardWorkspace<T> memory(launch, workspace);
  const std::int64_t heads = problem.batch * problem.heads_kv;
  const auto store = [&](std::int32_t worker, const Sequence& s, std::int64_t kv_head, KeyRange j) {
    const auto sums = memory.sums(worker, s.batch * problem.heads_kv + kv_head, 0);
    T* row = memory.scratch(worker).row;
    store_key_gradient(launch, s, kv_head, j, sums.dk, plan.chunks, memory.stride(), problem.dim,
                       static_cast<T>(problem.scale), row, operands.dk, problem.dk);
    store_key_gradient(launch, s, kv_head, j, sums.dv, plan.chunks, memory.stride(), problem.dim_v,
                       T{1}, row, operands.dv, problem.dv);
  };

  auto sweep = [&](std::int32_t worker, std::int64_t task) {
    const std::int64_t head = task / plan.chunks;
    const std::int64_t chunk = task % plan.chunks;
    const Sequence s = sequence_at(problem, operands, head / problem.heads_kv);
    backward_head(launch, s, head % problem.heads_kv, chunk, memory.scratch(worker),
                  memory.sums(worker, head, chunk));
    if (plan.chunks == 1) store(worker, s, head % problem.heads_kv, {0, s.k_rows});
  };
  parallel_for(plan.threads, heads * plan.chunks, sweep);

  auto reduce = [&](std::int32_t worker, std::int64_t task) {
    const std::int64_t head = task / plan.chunks;
    const std::int64_t part = task % plan.chunks;
    const Sequence s = sequence_at(problem, operands, head / problem.heads_kv);
    store(worker, s, head % problem.heads_kv,
          {s.k_rows * part / plan.chunks, s.k_rows * (part + 1) / plan.chunks});
  };
  if (plan.chunks > 1) parallel_for(plan.threads, heads * plan.chunks, reduce);
  if (problem.packed) clear_unused_gradients(launch, memory.scratch(0).row);

  auto sink = [&](std::int32_t worker, std::int64_t head) {
    sink_gradient(launch, head, memory.scratch(worker).row);
  };
  if (problem.has_dsinks) parallel_for(plan.threads, problem.heads_q, sink);

  auto bias = [&](std::int32_t worker, std::int64_t task) {
    bias_gradient(launch, task, memory.scratch(worker));
  };
  if (problem.has_dbias) parallel_for(plan.threads, bias_tasks(problem, plan), bias);
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
