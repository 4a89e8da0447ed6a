// SPDX-License-Identifier: Apache-2.0
#include "host/gpu_plan.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "host/checked.hpp"

namespace onchip::host {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kFloatBytes = 4;

/// Hands out aligned stretches of one block of memory.
class Layout {
 public:
  std::int64_t take(std::initializer_list<std::int64_t> factors) {
    const std::int64_t at = used_;
    used_ = sum(used_, aligned_bytes(factors, kAlignment));
    return at;
  }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  std::int64_t used_ = 0;
};

/// Whether the elements of dq are one stretch of memory, in any order of the axes.
bool dq_is_dense(const Problem& p) {
  struct Axis {
    std::int64_t stride, count;
  };
  std::array<Axis, 3> axes = {{{p.dq.batch, p.packed ? 1 : p.batch},
                               {p.dq.row, p.packed ? p.total_q : p.seqlen_q},
                               {p.dq.head, p.heads_q}}};
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t dense = p.dim;
  for (const Axis& axis : axes) {
    if (axis.count <= 1) continue;
    if (axis.stride != dense) return false;
    dense *= axis.count;
  }
  return true;
}

}  // namespace

GpuWorkspace gpu_workspace(const Problem& p, std::int64_t num_splits, bool counts_tiles) {
  Layout layout;
  GpuWorkspace w;
  if (p.packed) w.first_tile = layout.take({p.batch + 1, 8});
  if (p.pass == Pass::forward) {
    if (counts_tiles) w.next_tile = layout.take({1, 4});
    if (num_splits > 1) {
      w.partial_out = layout.take({num_splits, p.total_q, p.heads_q, p.dim_v, kFloatBytes});
      w.partial_lse = layout.take({num_splits, p.total_q, p.heads_q, kFloatBytes});
      if (row_kernels(p)) {
        w.lse_rest = layout.take({num_splits, p.total_q, p.heads_q, kFloatBytes});
      }
    }
  } else {
    const bool sums_dq = !p.deterministic && !row_kernels(p);
    w.statistics_in_dq = sums_dq && dq_is_dense(p);
    if (!w.statistics_in_dq) {
      w.delta = layout.take({p.total_q, p.heads_q, kFloatBytes});
      w.lse2 = layout.take({p.total_q, p.heads_q, kFloatBytes});
    }
    if (row_kernels(p)) w.lse_rest = layout.take({p.total_q, p.heads_q, kFloatBytes});
    if (sums_dq)
      w.dq_sum = layout.take({p.total_q, p.heads_q, ceil_div(p.dim, 16) * 16, kFloatBytes});
  }
  w.bytes = layout.used();
  return w;
}

bool needs_full(const Problem& p) {
  return p.softcap > 0 || p.bias_dtype != DType::none || p.has_alibi || p.dropout_p > 0 ||
         static_cast<float>(p.scale) <= 0;
}

bool row_kernels(const Problem& p) { return p.dtype == DType::float32; }

std::int64_t query_tiles(const Problem& p, std::int64_t tile) {
  // Heads of a group share the tiles of a sequence shorter than a tile; else each has its own.
  const std::int64_t group = p.heads_q / p.heads_kv;
  if (!p.packed) {
    return p.seqlen_q < tile ? ceil_div(product({p.seqlen_q, group}), tile)
                             : product({ceil_div(p.seqlen_q, tile), group});
  }
  const std::int64_t longer = std::min(p.batch, p.total_q / tile);  // sequences of a tile or more
  return (product({p.total_q, group}) + product({longer, group, tile - 1}) +
          product({p.batch - longer, tile - 1})) /
         tile;
}

std::int64_t key_tiles(const Problem& p, std::int64_t tile) {
  if (!p.packed) return ceil_div(p.seqlen_k, tile);
  return (p.total_k + product({p.batch, tile - 1})) / tile;
}

std::int64_t query_blocks(const Problem& p, std::int64_t tile) {
  if (row_kernels(p)) return ceil_div(product({p.total_q, p.heads_q}), tile);
  return product({query_tiles(p, tile), p.heads_kv, p.packed ? 1 : p.batch});
}

std::int64_t key_blocks(const Problem& p, std::int64_t tile) {
  if (row_kernels(p)) return ceil_div(product({p.total_k, p.heads_kv}), tile);
  return product({key_tiles(p, tile), p.heads_kv, p.packed ? 1 : p.batch});
}

}  // namespace onchip::host
