// SPDX-License-Identifier: Apache-2.0
// Backward pass on mma.sync: one block owns one tile of keys of a KV head and sweeps the query
// tiles of every head of the group. Products are in bwd_tile.cuh, the scores' arithmetic is in
// bwd_score.cuh.
#pragma once

#include <cstdint>

#include "common/dq_sum.cuh"
#include "common/key_work.cuh"
#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "prims/cp_async.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"
#include "prims/mbarrier.cuh"
#include "prims/shared.cuh"
#include "prims/tile.cuh"
#include "sm80/bwd_score.cuh"
#include "sm80/bwd_tile.cuh"

namespace onchip::cuda::sm80 {

/// The stages of query tiles: Q, dO, lse and delta. Stage n % kStages holds the n-th tile loaded.
template <class T>
struct QueryStages {
  const host::KernelParams& params;
  BackwardTiles<T> tiles;
  std::uint32_t barriers;  // one a stage: its tile is in shared memory
  int loaded = 0, used = 0;

  [[nodiscard]] __device__ __forceinline__ std::uint32_t q(int n) const {
    return tiles.queries + n % T::kStages * (2 * T::kQueryBytes);
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t dout(int n) const {
    return q(n) + T::kQueryBytes;
  }
  /// Shared memory offset of lse2[kBr], delta[kBr].
  [[nodiscard]] __device__ __forceinline__ std::uint32_t rows(int n) const {
    return tiles.rows + n % T::kStages * T::kRowBytes;
  }

  /// Starts the copy of queries [i0, i0 + kBr) of a head; those from q_len on become zeros.
  template <class Element>
  __device__ __forceinline__ void load(const Element* q_head, const Element* dout_head,
                                       std::int64_t row0, int i0, int q_len) {
    const host::Problem& p = params.problem;
    const int n = loaded++;
    load_tile<T::kDim, T::kBr, T::kThreads>(q(n), q_head + i0 * p.q.row, p.q.row, q_len - i0,
                                            static_cast<int>(p.dim), params.aligned);
    load_tile<T::kDim, T::kBr, T::kThreads>(dout(n), dout_head + i0 * p.dout.row, p.dout.row,
                                            q_len - i0, static_cast<int>(p.dim_v), params.aligned);
    const int row = static_cast<int>(threadIdx.x);
    if (row < T::kBr) {
      const std::int64_t at = i0 + row < q_len ? row0 + i0 + row : 0;
      copy_4(rows(n) + row * 4, params.lse2 + at, i0 + row < q_len);
      copy_4(rows(n) + (T::kBr + row) * 4, params.delta + at, i0 + row < q_len);
    }
    const std::uint32_t barrier = barriers + n % T::kStages * 8;
    if (params.aligned) {
      barrier_arrive_copies(barrier);
    } else {  // rows were written by this thread itself
      copy_commit();
      copy_wait<0>();
      barrier_arrive(barrier);
    }
  }

  /// Waits for the next tile and returns its number.
  __device__ __forceinline__ int wait() {
    const int n = used++;
    barrier_wait(barriers + n % T::kStages * 8, static_cast<std::uint32_t>(n / T::kStages % 2));
    return n;
  }
};

/// The query tiles of one head that meet this block's keys: the main loop. One barrier a tile where
/// there are two stages and two buffers: behind it, all have read what the tile before left.
template <class T>
__device__ __forceinline__ void backward_head(const host::KernelParams& params, const KeyWork& work,
                                              int head, const char* shared, QueryStages<T>& stages,
                                              KeySums<T>& dk, KeySums<T>& dv) {
  using Element = typename T::Element;
  const host::Problem& p = params.problem;
  const host::Sequence& s = work.sequence;
  const BackwardTiles<T>& tiles = stages.tiles;
  QueryWork query;
  query.sequence = s;
  query.kv_head = work.kv_head;
  query.head = head;
  query.rows = static_cast<int>(s.q_len);
  const TileKeys keys = keys_of(p, query);
  const int q_len = static_cast<int>(s.q_len);
  const int j0 = work.first;
  const int j_end = min(j0 + T::kBc, keys.k_len);
  // Rows i with first(i) < j_end and end(i) > j0.
  const int begin = max(0, j0 + 1 - keys.to) / T::kBr;
  const int end = (min(q_len, j_end - keys.from) + T::kBr - 1) / T::kBr;
  if (j_end <= j0 || begin >= end) return;

  const Element* q = static_cast<const Element*>(params.operands.q) +
                     host::offset_of(p.q, s.batch, s.q_start, 0, head);
  const Element* dout = static_cast<const Element*>(params.operands.dout) +
                        host::offset_of(p.dout, s.batch, s.q_start, 0, head);
  const std::int64_t row0 = query_row(params, s, head);
  const int pitch = dq_pitch(static_cast<int>(p.dim));
  const float c = T::kFull ? 1.0F : static_cast<float>(p.scale) * kLog2e;
  const bool dropout = T::kFull && params.dropout_threshold > 0;

  if (T::kStages == 1) __syncthreads();  // the last head's tile may still be read
  stages.load(q, dout, row0, begin * T::kBr, q_len);
  for (int tile = begin; tile < end; ++tile) {
    const int n = stages.wait();
    const int i0 = tile * T::kBr;
    const std::uint32_t buffer = n % T::kBuffers * T::kScoreBytes;
    const auto* rows = reinterpret_cast<const float*>(shared + (stages.rows(n) - tiles.k));
    query.first = i0;
    query.rows = min(T::kBr, q_len - i0);
    const int i_last = i0 + query.rows - 1;
    const bool masked =
        query.rows < T::kBr || keys.first(i_last) > j0 || keys.end(i0) < j0 + T::kBc;
#pragma unroll
    for (int column = 0; column < T::kQueries; column += T::kColumns) {
      Transposed<T> weights;  // S^T, then P^T
      [[maybe_unused]] Transposed<T> slope;
      multiply_transposed<T>(tiles.k, stages.q(n), column, weights);
      if constexpr (T::kFull) apply_options<T>(params, query, column, j0, weights, slope);
      Transposed<T> ds;  // dP^T, then dS^T
      multiply_transposed<T>(tiles.v, stages.dout(n), column, ds, [&](int product) {
        to_weights<T>(product, c, column, rows, weights);
      });
      Transposed<T> kept = weights;
      if (dropout) apply_dropout<T>(params, query, column, j0, kept, ds);
      to_score_gradient<T>(column, rows + T::kBr, weights, ds);
      if constexpr (T::kFull) scale_by<T>(slope, ds);
      if (masked) {
        clear_hidden<T>(keys, query.rows, i0, j0, column, kept);
        clear_hidden<T>(keys, query.rows, i0, j0, column, ds);
      }

      if (T::kBuffers == 1 && column == 0) __syncthreads();
      const Operands<T> p_operands(kept);
      const Operands<T> ds_operands(ds);
      store_scores<T>(ds_operands, column, tiles.ds + buffer);
      if constexpr (T::kShared) {
        store_scores<T>(p_operands, column, tiles.p + buffer);
      } else {
        const int part = column * T::kDim * 2;
        add_key_sums<T>(p_operands, stages.dout(n) + part, dv);
        add_key_sums<T>(ds_operands, stages.q(n) + part, dk);
      }
    }
    __syncthreads();
    if (T::kStages > 1 && tile + 1 < end) stages.load(q, dout, row0, i0 + T::kBr, q_len);
    if constexpr (T::kShared) {
      add_key_sums<T>(tiles.p + buffer, stages.dout(n), dv);
      add_key_sums<T>(tiles.ds + buffer, stages.q(n), dk);
    }
    if (params.dq_sum != nullptr) {
      add_dq<T>(tiles.ds + buffer, tiles.k, params.dq_sum + (row0 + i0) * pitch, query.rows,
                static_cast<int>(p.dim));
    }
    if (T::kStages == 1 && tile + 1 < end) {
      __syncthreads();
      stages.load(q, dout, row0, i0 + T::kBr, q_len);
    }
  }
}

/// dK or dV of this block's keys through shared memory to device memory.
template <class T>
__device__ __forceinline__ void store_keys(const host::KernelParams& params, const KeyWork& work,
                                           const char* shared, const BackwardTiles<T>& tiles,
                                           std::uint32_t tile, float factor, const KeySums<T>& sums,
                                           void* to, const host::Strides& strides,
                                           std::int64_t dim) {
  using Element = typename T::Element;
  const int column0 = warp_id() % T::kQueryWarps * T::kSumColumns;
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
    for (int n = 0; n < T::kSumColumns / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* x = sums.x[t][n] + 2 * half;
        const std::uint32_t at =
            tile + chunk_offset<T::kDim>(key_of<T>(t, half), column0 / 8 + n) + lane_id() % 4 * 4;
        store_shared(at, pack<Element>(x[0] * factor, x[1] * factor));
      }
    }
  }
  __syncthreads();
  const host::Sequence& s = work.sequence;
  Element* base = static_cast<Element*>(to) +
                  host::offset_of(strides, s.batch, s.k_start, work.first, work.kv_head);
  constexpr int kRows = T::kBc / T::kWarps;
  store_tile<T::kDim, kRows, Element>(shared + (tile - tiles.k), warp_id() * kRows, work.rows,
                                      static_cast<int>(dim), params.aligned, strides.row,
                                      [&](int row) { return base + row * strides.row; });
}

template <class T>
__global__ __launch_bounds__(T::kThreads, T::kBlocksPerSm) void backward_kernel(
    const __grid_constant__ host::KernelParams params) {
  using Element = typename T::Element;
  extern __shared__ __align__(128) char shared[];
  __shared__ std::uint64_t barriers[T::kStages];
  const host::Problem& p = params.problem;
  const KeyWork work = find_key_work(params, T::kBc);
  if (work.rows <= 0) return;
  const host::Sequence& s = work.sequence;
  QueryStages<T> stages{params, BackwardTiles<T>(shared_address(shared)), shared_address(barriers)};
  const BackwardTiles<T>& tiles = stages.tiles;
  if (threadIdx.x < T::kStages) barrier_init(stages.barriers + threadIdx.x * 8, T::kThreads);
  __syncthreads();
  const int keys = static_cast<int>(s.k_len) - work.first;
  const Element* k = static_cast<const Element*>(params.operands.k) +
                     host::offset_of(p.k, s.batch, s.k_start, work.first, work.kv_head);
  const Element* v = static_cast<const Element*>(params.operands.v) +
                     host::offset_of(p.v, s.batch, s.k_start, work.first, work.kv_head);
  load_tile<T::kDim, T::kBc, T::kThreads>(tiles.k, k, p.k.row, keys, static_cast<int>(p.dim),
                                          params.aligned);
  load_tile<T::kDim, T::kBc, T::kThreads>(tiles.v, v, p.v.row, keys, static_cast<int>(p.dim_v),
                                          params.aligned);
  KeySums<T> dk;
  KeySums<T> dv;
  const int group = static_cast<int>(p.heads_q) / static_cast<int>(p.heads_kv);
  for (int g = 0; g < group; ++g)
    backward_head<T>(params, work, work.kv_head * group + g, shared, stages, dk, dv);
  copy_commit();  // K and V, which no barrier waited for where no query meets these keys
  copy_wait<0>();
  __syncthreads();
  store_keys<T>(params, work, shared, tiles, tiles.k, static_cast<float>(p.scale), dk,
                params.operands.dk, p.dk, p.dim);
  store_keys<T>(params, work, shared, tiles, tiles.v, 1.0F, dv, params.operands.dv, p.dv, p.dim_v);
}

}  // namespace onchip::cuda::sm80
