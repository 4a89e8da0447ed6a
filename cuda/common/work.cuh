// SPDX-License-Identifier: Apache-2.0
// From a block's number to the tile of query rows it computes, and from rows to memory.
#pragma once

#include <cstdint>

#include "common/tile_number.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "prims/tile.cuh"

namespace onchip::cuda {

/// A tile of query rows of one KV head. Rows run through the positions of head `head` from `first`
/// on, then those of the next heads where short sequences share a tile (GQA).
struct QueryWork {
  host::Sequence sequence;
  int kv_head = 0, head = 0;
  int first = 0;  // position of row 0
  int rows = 0;   // 0: nothing to do
  int split = 0;
  bool one_head = true;

  float heads_per_row = 0.0F;  // 1 / q_rows where the tile spans heads

  /// Heads that end before row `row`. Where heads_per_row is not 0 the numbers are below 2^8, so
  /// that float32 rounds to no wrong side.
  __device__ __forceinline__ int heads_before(int row) const {
    return static_cast<int>((static_cast<float>(first + row) + 0.5F) * heads_per_row);
  }
  __device__ __forceinline__ int head_of(int row) const { return head + heads_before(row); }
  __device__ __forceinline__ int position_of(int row) const {
    return first + row - heads_before(row) * static_cast<int>(sequence.q_rows);
  }
};

/// Fills the rows of the tile of rank `rank` of a KV head: later rows, which see more keys under a
/// causal mask, come first, over all heads of the group.
__device__ inline void set_query_tile(const host::Divisor& heads_of_group, int rank, int tile_q,
                                      QueryWork& work) {
  const int group = static_cast<int>(heads_of_group.by);
  const int q_rows = static_cast<int>(work.sequence.q_rows);
  const bool shared = q_rows < tile_q;
  const int span = shared ? q_rows * group : q_rows;  // rows that tiles cut up
  const int tiles = (span + tile_q - 1) / tile_q;
  const int from =
      shared ? rank : static_cast<int>(heads_of_group.quotient(static_cast<unsigned>(rank)));
  const int first = (tiles - 1 - from) * tile_q;
  const int head = shared ? first / q_rows : rank - from * group;
  work.rows = min(tile_q, span - first);
  work.head = work.kv_head * group + head;
  work.first = shared ? first - head * q_rows : first;
  work.one_head = work.first + work.rows <= q_rows;
  work.heads_per_row = work.one_head ? 0.0F : 1.0F / static_cast<float>(q_rows);
}

/// The longest tiles of a sequence come first; the splits of a tile stand side by side.
__device__ inline QueryWork find_query_work(const host::KernelParams& params, int tile_q) {
  QueryWork work;
  unsigned number = blockIdx.x;
  if (params.num_splits > 1) {
    work.split = static_cast<int>(number % static_cast<unsigned>(params.num_splits));
    number /= static_cast<unsigned>(params.num_splits);
  }
  find_tile(params, number, work,
            [&](int rank) { set_query_tile(params.divisors.group, rank, tile_q, work); });
  return work;
}

/// Keys [lo, hi) that some row and [all_lo, all_hi) that every row of the tile sees. The row at
/// position i sees [max(0, i + from), min(k_len, i + to)), which is host::key_bounds in 32 bits.
struct TileKeys {
  int lo, hi, all_lo, all_hi;
  int from, to, k_len;

  __device__ __forceinline__ int first(int position) const { return max(0, position + from); }
  __device__ __forceinline__ int end(int position) const { return min(k_len, position + to); }
};

__device__ inline TileKeys keys_of(const host::Problem& p, const QueryWork& work) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;  // farther than any sequence is long
  const host::Sequence& s = work.sequence;
  const std::int64_t diagonal = s.k_len - s.q_len;
  TileKeys keys;
  keys.k_len = static_cast<int>(s.k_len);
  keys.from = static_cast<int>(
      p.window_left < 0 ? -kFar : diagonal - min(p.window_left, s.q_len + s.k_len));
  keys.to = static_cast<int>(
      p.window_right < 0 ? kFar : diagonal + min(p.window_right, s.q_len + s.k_len) + 1);
  const int first = work.one_head ? work.first : 0;
  const int last = work.one_head ? work.first + work.rows - 1 : static_cast<int>(s.q_rows) - 1;
  keys.lo = keys.first(first);
  keys.hi = first >= s.q_len ? 0 : keys.end(last);
  keys.all_lo = keys.first(last);
  keys.all_hi = keys.end(first);
  return keys;
}

/// Address of key row j of K or V, dense, packed or paged.
template <class Element>
struct KeyRows {
  const Element* base;  // paged: page 0; else row 0 of the sequence
  std::int64_t row_stride, page_stride;
  const std::int32_t* pages;  // null: not paged
  std::int64_t pages_stride;
  int page_size;
  std::int64_t num_pages;

  __device__ __forceinline__ KeyRows(const host::KernelParams& params, const void* memory,
                                     const host::Strides& strides, const host::Sequence& s,
                                     int kv_head)
      : base(static_cast<const Element*>(memory)),
        row_stride(strides.row),
        page_stride(strides.batch),
        pages(nullptr),
        pages_stride(params.problem.block_table_page),
        page_size(static_cast<int>(params.problem.page_size)),
        num_pages(params.problem.num_pages) {
    if (params.problem.paged) {
      pages = params.operands.block_table + s.batch * params.problem.block_table_batch;
      base += kv_head * strides.head;
    } else {
      base += host::offset_of(strides, s.batch, s.k_start, 0, kv_head);
    }
  }
  __device__ __forceinline__ const Element* operator()(int j) const {
    if (pages == nullptr) return base + j * row_stride;
    // An entry that names no page reads page 0: a wrong result, never a wrong address.
    const std::int64_t page = pages[j / page_size * pages_stride];
    return base + (page >= 0 && page < num_pages ? page : 0) * page_stride +
           j % page_size * row_stride;
  }
};

/// Starts the copy of keys [j0, j0 + kRows) into a tile; keys from `limit` on become zeros. kWhole
/// says that there are none.
template <int kDim, int kRows, int kThreads, bool kWhole = false, class Element>
__device__ __forceinline__ void load_key_tile(std::uint32_t tile, const KeyRows<Element>& rows,
                                              int j0, int limit, int dim, bool aligned) {
  if (aligned && rows.pages == nullptr) {
    load_rows<kDim, kRows, kThreads, kWhole>(tile, rows.base + j0 * rows.row_stride,
                                             rows.row_stride, limit - j0, dim);
  } else {
    gather_rows<kDim, kRows, kThreads, Element>(tile, limit - j0, dim, aligned,
                                                [&](int row) { return rows(j0 + row); });
  }
}

/// Address of a tile's row in a query-side tensor.
template <class Element>
struct QueryRows {
  Element* base;
  host::Strides strides;
  const QueryWork* work;

  template <class Void>
  __device__ __forceinline__ QueryRows(Void* memory, const host::Strides& s, const QueryWork& w)
      : base(static_cast<Element*>(memory)), strides(s), work(&w) {}
  __device__ __forceinline__ Element* operator()(int row) const {
    const host::Sequence& s = work->sequence;
    return base +
           host::offset_of(strides, s.batch, s.q_start, work->position_of(row), work->head_of(row));
  }
};

/// Starts the copy of a tile of query rows; rows from `count` on become zeros.
template <int kDim, int kRows, int kThreads, class Element>
__device__ __forceinline__ void load_query_tile(std::uint32_t tile,
                                                const QueryRows<const Element>& rows, int count,
                                                int dim, bool aligned) {
  if (aligned && rows.work->one_head) {
    load_rows<kDim, kRows, kThreads>(tile, rows(0), rows.strides.row, count, dim);
  } else {
    gather_rows<kDim, kRows, kThreads, Element>(tile, count, dim, aligned, rows);
  }
}

/// Row of the split partials that belongs to a row of the tile.
__device__ __forceinline__ std::int64_t partial_row(const host::KernelParams& params,
                                                    const QueryWork& work, int row) {
  const host::Problem& p = params.problem;
  const host::Sequence& s = work.sequence;
  const std::int64_t start = p.packed ? s.q_start : s.batch * p.seqlen_q;
  return (work.split * p.total_q + start + work.position_of(row)) * p.heads_q + work.head_of(row);
}

/// Row of lse2, delta and dq_sum, [heads_q][rows of q], that belongs to position 0 of a sequence.
__device__ __forceinline__ std::int64_t query_row(const host::KernelParams& params,
                                                  const host::Sequence& s, int head) {
  const host::Problem& p = params.problem;
  return head * p.total_q + (p.packed ? s.q_start : s.batch * p.seqlen_q);
}

}  // namespace onchip::cuda
