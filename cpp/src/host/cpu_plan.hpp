// SPDX-License-Identifier: Apache-2.0
// Tiles and workspace of the CPU backend: the one description that planner and kernels share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/checked.hpp"
#include "host/problem.hpp"

namespace onchip::host {

inline constexpr std::int64_t kCpuTileQ = 128;          // Br: query rows of a tile
inline constexpr std::int64_t kCpuTileK = 96;           // Bc: keys of a tile
inline constexpr std::int64_t kCpuMaxVectorBytes = 64;  // AVX-512
inline constexpr std::int64_t kCpuMaxPanelBytes = 2 * kCpuMaxVectorBytes;  // a panel is two vectors
inline constexpr std::int64_t kCpuAlignment = 256;

struct CpuPlan {
  std::int64_t tile_q = 0;        // Br, a multiple of every panel width
  std::int64_t tile_k = 0;        // Bc
  std::int32_t threads = 1;       // workers; each owns one scratch slice of the workspace
  std::int64_t tasks = 0;         // work items that workers take in order
  std::int64_t num_splits = 1;    // forward: split-KV parts of a tile
  std::int64_t split_size = 0;    // forward: keys of one part
  std::int64_t chunks = 1;        // backward: accumulators of dK and dV for one head
  std::size_t scratch_bytes = 0;  // of one worker
  std::size_t shared_bytes = 0;   // tile index, split partials, accumulators of several chunks
  [[nodiscard]] std::size_t workspace_bytes() const {
    return static_cast<std::size_t>(
        sum(product({static_cast<std::int64_t>(scratch_bytes), threads}),
            static_cast<std::int64_t>(shared_bytes)));
  }
};

/// `threads` is DeviceInfo::units of the CPU.
CpuPlan plan_cpu(const Problem& problem, std::int32_t threads);

/// Hands out stretches of one block of memory; with a null base it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {}

  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t at = used_;
    used_ = sum(used_, aligned_bytes({count, std::int64_t{sizeof(T)}}, kCpuAlignment));
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  [[nodiscard]] std::size_t used() const { return static_cast<std::size_t>(used_); }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

/// Elements of a row of the widest panel.
template <class T>
inline constexpr std::int64_t kMaxPanelWidth =
    kCpuMaxPanelBytes / static_cast<std::int64_t>(sizeof(T));

/// `dim` columns, rounded up to whole panels of any instruction set.
template <class T>
constexpr std::int64_t panel_columns(std::int64_t dim) {
  return ceil_div(dim, kMaxPanelWidth<T>) * kMaxPanelWidth<T>;
}

/// Row length of a packed K or V tile: whole cache lines and one more, so that a column of the tile
/// does not fall into few cache sets.
template <class T>
constexpr std::int64_t tile_row(std::int64_t dim) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  return (ceil_div(dim, kLine) + 1) * kLine;
}

/// Scratch of one worker in the forward pass. Panels are described in cpu/gemm-inl.h.
template <class T>
struct ForwardScratch {
  T *k, *v;       // [Bc][tile_row(D or Dv)]
  T *q, *o;       // panels of query rows: [Br / W][D or Dv][W]
  T* scores;      // one panel: [Bc][W]
  T *bias, *row;  // one panel of bias, one row of the widest tensor

  ForwardScratch(Arena& arena, const Problem& p, const CpuPlan& plan) {
    k = arena.take<T>(plan.tile_k * tile_row<T>(p.dim));
    v = arena.take<T>(plan.tile_k * tile_row<T>(p.dim_v));
    q = arena.take<T>(plan.tile_q * p.dim);
    o = arena.take<T>(plan.tile_q * p.dim_v);
    scores = arena.take<T>(plan.tile_k * kMaxPanelWidth<T>);
    bias = arena.take<T>(p.bias_dtype == DType::none ? 0 : plan.tile_k * kMaxPanelWidth<T>);
    row = arena.take<T>(p.dim > p.dim_v ? p.dim : p.dim_v);
  }
};

/// Accumulators of dK and dV of one head, panels of columns: [columns / W][Sk][W].
template <class T>
struct KeyGradients {
  T *dk, *dv;
  KeyGradients(Arena& arena, const Problem& p) {
    dk = arena.take<T>(product({p.seqlen_k, panel_columns<T>(p.dim)}));
    dv = arena.take<T>(product({p.seqlen_k, panel_columns<T>(p.dim_v)}));
  }
};

/// Scratch of one worker in the backward pass.
template <class T>
struct BackwardScratch {
  T *k, *v;                // [Bc][tile_row(D or Dv)]
  T *q, *dout, *dq;        // panels of query rows: [Br / W][D or Dv][W]
  T *q_rows, *dout_rows;   // panels of columns: [columns / W][Br][W]
  T *p, *ds;               // panels of query rows: [Br / W][Bc][W]
  T *bias, *slope, *keep;  // one panel each: bias, d(softcap)/ds, dropout
  T* row;
  double* dbias;  // [Bc][Br]: sums over a whole broadcast

  BackwardScratch(Arena& arena, const Problem& problem, const CpuPlan& plan) {
    const std::int64_t panel = plan.tile_k * kMaxPanelWidth<T>;
    k = arena.take<T>(plan.tile_k * tile_row<T>(problem.dim));
    v = arena.take<T>(plan.tile_k * tile_row<T>(problem.dim_v));
    q = arena.take<T>(plan.tile_q * problem.dim);
    dout = arena.take<T>(plan.tile_q * problem.dim_v);
    dq = arena.take<T>(plan.tile_q * problem.dim);
    q_rows = arena.take<T>(plan.tile_q * panel_columns<T>(problem.dim));
    dout_rows = arena.take<T>(plan.tile_q * panel_columns<T>(problem.dim_v));
    p = arena.take<T>(plan.tile_q * plan.tile_k);
    ds = arena.take<T>(plan.tile_q * plan.tile_k);
    bias = arena.take<T>(problem.bias_dtype == DType::none ? 0 : panel);
    slope = arena.take<T>(problem.softcap > 0 ? panel : 0);
    keep = arena.take<T>(problem.dropout_p > 0 ? panel : 0);
    row = arena.take<T>(problem.dim > problem.dim_v ? problem.dim : problem.dim_v);
    dbias = arena.take<double>(problem.has_dbias ? plan.tile_q * plan.tile_k : 0);
  }
};

/// Memory that the workers of the forward pass share.
template <class T>
struct SharedScratch {
  std::int64_t* first_tile;      // [B + 1]: query tiles of one KV head before sequence b
  T *partial_out, *partial_lse;  // with splits: [splits][rows of q * Hq][Dv or 1]

  SharedScratch(Arena& arena, const Problem& p, const CpuPlan& plan) {
    first_tile = arena.take<std::int64_t>(p.batch + 1);
    const std::int64_t rows =
        plan.num_splits > 1 ? product({plan.num_splits, p.total_q, p.heads_q}) : 0;
    partial_out = arena.take<T>(product({rows, p.dim_v}));
    partial_lse = arena.take<T>(rows);
  }
};

}  // namespace onchip::host
