// SPDX-License-Identifier: Apache-2.0
// The backward pass tile of queries by tile of queries: dQ summed in one order
// (deterministic=True), and dbias, each element of which one block sums over all that broadcasts
// onto it. Both recompute P from lse like bwd.cuh, but keep nothing that other blocks add to.
#pragma once

#include <cstdint>

#include "common/key_work.cuh"
#include "common/options.cuh"
#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "prims/cp_async.cuh"
#include "prims/math.cuh"
#include "prims/shared.cuh"
#include "sm80/fwd.cuh"

namespace onchip::cuda::sm80 {

/// Shared memory: Q, dO, K and V, one tile each.
template <class T>
struct QueryTiles {
  static constexpr int kBytes = 2 * T::kQBytes + 2 * T::kStageBytes;
  std::uint32_t q, dout, k, v;
  __device__ __forceinline__ explicit QueryTiles(std::uint32_t base)
      : q(base), dout(base + T::kQBytes), k(base + 2 * T::kQBytes), v(k + T::kStageBytes) {}
};

/// lse in base 2 and delta of a thread's rows; rows that do not count have P = 0.
template <class T>
struct RowStatistics {
  float lse2[T::kRows], delta[T::kRows];

  __device__ __forceinline__ RowStatistics(const host::KernelParams& params,
                                           const QueryWork& work) {
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const int row = row_of<T>(r);
      const bool counts = row < work.rows && work.position_of(row) < work.sequence.q_len;
      const std::int64_t at =
          counts ? query_row(params, work.sequence, work.head_of(row)) + work.position_of(row) : 0;
      lse2[r] = counts ? params.lse2[at] : kInfinity;
      delta[r] = counts ? params.delta[at] : 0.0F;
    }
  }
};

/// Starts the copy of the tile's Q and dO rows; those that do not count become zeros.
template <class T>
__device__ __forceinline__ void load_queries(const host::KernelParams& params,
                                             const QueryWork& work, const QueryTiles<T>& tiles) {
  using Element = typename T::Element;
  const host::Problem& p = params.problem;
  const int counted = work.one_head
                          ? min(work.rows, static_cast<int>(work.sequence.q_len) - work.first)
                          : work.rows;
  load_query_tile<T::kDim, T::kBr, T::kThreads>(
      tiles.q, QueryRows<const Element>(params.operands.q, p.q, work), counted,
      static_cast<int>(p.dim), params.aligned);
  load_query_tile<T::kDim, T::kBr, T::kThreads>(
      tiles.dout, QueryRows<const Element>(params.operands.dout, p.dout, work), counted,
      static_cast<int>(p.dim_v), params.aligned);
}

template <class T>
__device__ __forceinline__ void load_keys(const host::KernelParams& params, const QueryWork& work,
                                          int j0, const QueryTiles<T>& tiles) {
  using Element = typename T::Element;
  const host::Problem& p = params.problem;
  const int limit = static_cast<int>(work.sequence.k_len);
  const KeyRows<Element> k(params, params.operands.k, p.k, work.sequence, work.kv_head);
  const KeyRows<Element> v(params, params.operands.v, p.v, work.sequence, work.kv_head);
  load_key_tile<T::kDim, T::kBc, T::kThreads>(tiles.k, k, j0, limit, static_cast<int>(p.dim),
                                              params.aligned);
  load_key_tile<T::kDim, T::kBc, T::kThreads>(tiles.v, v, j0, limit, static_cast<int>(p.dim_v),
                                              params.aligned);
  copy_commit();
}

/// dS = P (dP - delta) of the tile for keys from j0 on, the gradient in the softmax's argument;
/// `slope` receives d softcap / ds. Hidden pairs are exactly 0.
template <class T>
__device__ __forceinline__ void score_gradient(const host::KernelParams& params,
                                               const QueryWork& work, const TileKeys& keys,
                                               const RowStatistics<T>& rows, int j0,
                                               const QueryTiles<T>& tiles, Scores<T>& ds,
                                               Scores<T>& slope) {
  const float scale = static_cast<float>(params.problem.scale);
  Scores<T> weights;
  multiply_qk<T>(Query<T>(tiles.q), key_place<T>(tiles.k), weights);
  multiply_qk<T>(Query<T>(tiles.dout), key_place<T>(tiles.v), ds);
  const int column = j0 + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const RowOptions row(params, work, row_of<T>(r));
    const int position = work.position_of(row_of<T>(r));
    const int lo = keys.first(position);
    const int hi = keys.end(position);
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
      std::uint32_t word = 0xffffffffU;
      if (params.dropout_threshold > 0) {
        word = dropout_word(params, row, j0 / 8 + n, static_cast<int>(threadIdx.x) % 4);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = r % 2 * 2 + e;
        const int j = column + 8 * n + e;
        float& gradient = ds.s[r / 2][n][at];
        float& factor = slope.s[r / 2][n][at];
        const float s = option_score(params, row, j, scale, weights.s[r / 2][n][at], factor);
        const std::uint32_t draw = e == 0 ? word & 0xffffU : word >> 16;
        const float dp = draw < params.dropout_threshold ? 0.0F : gradient * params.kept_scale;
        const bool visible = j >= lo && j < hi && rows.lse2[r] != kInfinity;
        gradient = visible ? exp2_fast(s - rows.lse2[r]) * (dp - rows.delta[r]) : 0.0F;
        factor = visible ? factor : 0.0F;  // a row that does not count may hold NaN
      }
    }
  }
}

/// dQ of one tile, its keys in rising order.
template <class T>
__global__ __launch_bounds__(T::kThreads, T::kBlocksPerSm) void dq_kernel(
    const __grid_constant__ host::KernelParams params) {
  extern __shared__ __align__(128) char shared[];
  const QueryWork work = find_query_work(params, T::kBr);
  if (work.rows <= 0) return;
  const host::Problem& p = params.problem;
  const QueryTiles<T> tiles(shared_address(shared));
  const TileKeys keys = keys_of(p, work);
  const RowStatistics<T> rows(params, work);
  State<T> state;
#pragma unroll
  for (auto& tile : state.o) {
#pragma unroll
    for (auto& o : tile) o[0] = o[1] = o[2] = o[3] = 0.0F;
  }
  const int begin = keys.lo / T::kBc * T::kBc;
  // A tile that sees no key loads nothing: no wait would stand between the copies and dQ there.
  if (begin < keys.hi) load_queries<T>(params, work, tiles);
  for (int j0 = begin; j0 < keys.hi; j0 += T::kBc) {
    __syncthreads();
    load_keys<T>(params, work, j0, tiles);
    copy_wait<0>();
    __syncthreads();
    Scores<T> ds;
    Scores<T> slope;
    score_gradient<T>(params, work, keys, rows, j0, tiles, ds, slope);
    const float scale = static_cast<float>(p.scale);
#pragma unroll
    for (int t = 0; t < T::kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) ds.s[t][n][i] *= slope.s[t][n][i] * scale;
      }
    }
    multiply_pv<T>(ds, value_place<T>(tiles.k), state);
  }
  store_rows<T>(params, work, shared, state.o, p.dq, params.operands.dq, static_cast<int>(p.dim));
}

/// Tiles of dbias along queries and keys; broadcast axes have one.
struct BiasGrid {
  int rows, cols;
  __device__ __forceinline__ BiasGrid(const host::BiasShape& shape, int tile_q, int tile_k)
      : rows(static_cast<int>((shape.row + tile_q - 1) / tile_q)),
        cols(static_cast<int>((shape.col + tile_k - 1) / tile_k)) {}
};

/// Adds the gradient of every tile of one (sequence, head) that falls onto this block's part of
/// dbias.
template <class T>
__device__ __forceinline__ void add_bias_tiles(const host::KernelParams& params,
                                               const QueryWork& base, int row0, int col0,
                                               const QueryTiles<T>& tiles, Scores<T>& sums) {
  const host::BiasShape& shape = params.problem.bias_shape;
  const int q_rows = static_cast<int>(base.sequence.q_rows);
  const int row_end = shape.row == 1 ? q_rows : min(q_rows, row0 + T::kBr);
  for (int first = row0; first < row_end; first += T::kBr) {
    QueryWork work = base;
    work.first = first;
    work.rows = min(T::kBr, q_rows - first);
    const TileKeys keys = keys_of(params.problem, work);
    const int lo = shape.col == 1 ? keys.lo / T::kBc * T::kBc : col0;
    const int hi = shape.col == 1 ? keys.hi : min(keys.hi, col0 + T::kBc);
    if (lo >= hi) continue;
    const RowStatistics<T> rows(params, work);
    __syncthreads();
    load_queries<T>(params, work, tiles);
    for (int j0 = lo; j0 < hi; j0 += T::kBc) {
      __syncthreads();
      load_keys<T>(params, work, j0, tiles);
      copy_wait<0>();
      __syncthreads();
      Scores<T> ds;
      Scores<T> slope;
      score_gradient<T>(params, work, keys, rows, j0, tiles, ds, slope);
#pragma unroll
      for (int t = 0; t < T::kRowTiles; ++t) {
#pragma unroll
        for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums.s[t][n][i] += ds.s[t][n][i];
        }
      }
    }
  }
}

/// One tile of dbias: the sum over every batch, head, query and key that it was broadcast to.
template <class T>
__global__ __launch_bounds__(T::kThreads, T::kBlocksPerSm) void dbias_kernel(
    const __grid_constant__ host::KernelParams params) {
  extern __shared__ __align__(128) char shared[];
  const host::Problem& p = params.problem;
  const host::BiasShape& shape = p.bias_shape;
  const QueryTiles<T> tiles(shared_address(shared));
  const BiasGrid grid(shape, T::kBr, T::kBc);
  const int col0 = static_cast<int>(blockIdx.x) % grid.cols * T::kBc;
  const int row0 = static_cast<int>(blockIdx.x) / grid.cols % grid.rows * T::kBr;
  const int plane = static_cast<int>(blockIdx.x) / grid.cols / grid.rows;
  const int head0 = plane % static_cast<int>(shape.head);
  const int batch0 = plane / static_cast<int>(shape.head);
  Scores<T> sums;
#pragma unroll
  for (auto& tile : sums.s) {
#pragma unroll
    for (auto& x : tile) x[0] = x[1] = x[2] = x[3] = 0.0F;
  }
  for (std::int64_t b = batch0; b < p.batch; b += shape.batch) {
    for (std::int64_t h = head0; h < p.heads_q; h += shape.head) {
      QueryWork work;
      work.sequence = host::sequence_at(p, params.operands, b);
      work.head = static_cast<int>(h);
      work.kv_head = static_cast<int>(h / (p.heads_q / p.heads_kv));
      add_bias_tiles<T>(params, work, row0, col0, tiles, sums);
    }
  }
  // [Br][Bc] in shared memory, then each element of dbias sums what broadcasts onto it.
  __syncthreads();
  auto* tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        tile[row_of<T>(r) * T::kBc + 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + e] =
            sums.s[r / 2][n][r % 2 * 2 + e];
      }
    }
  }
  __syncthreads();
  const int rows = shape.row == 1 ? 1 : min(T::kBr, static_cast<int>(shape.row) - row0);
  const int cols = shape.col == 1 ? 1 : min(T::kBc, static_cast<int>(shape.col) - col0);
  for (int at = static_cast<int>(threadIdx.x); at < rows * cols; at += T::kThreads) {
    const int i = at / cols;
    const int j = at % cols;
    float sum = 0.0F;
    for (int r = i; r < (shape.row == 1 ? T::kBr : i + 1); ++r) {
      for (int c = j; c < (shape.col == 1 ? T::kBc : j + 1); ++c) sum += tile[r * T::kBc + c];
    }
    const std::int64_t to = batch0 * p.dbias.batch + head0 * p.dbias.head +
                            (row0 + i) * p.dbias.row + (col0 + j) * p.dbias.col;
    store_float(p.bias_dtype, params.operands.dbias, to, sum);
  }
}

}  // namespace onchip::cuda::sm80
