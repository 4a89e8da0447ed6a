// SPDX-License-Identifier: Apache-2.0
// Backward pass on mma.sync: from scores to P^T and dS^T, in registers.
#pragma once

#include <cstdint>

#include "common/options.cuh"
#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "prims/math.cuh"
#include "sm80/bwd_tile.cuh"

namespace onchip::cuda::sm80 {

/// Place of element (t, n, half, e) of a part within the tile: accumulators hold key rows lane / 4
/// and + 8 (half), query columns 2 (lane % 4) and + 1 (e).
template <class T>
__device__ __forceinline__ int key_of(int t, int half) {
  return first_key<T>() + t * 16 + lane_id() / 4 + 8 * half;
}
template <class T>
__device__ __forceinline__ int query_of(int column, int n, int e) {
  return first_query<T>() + column + 8 * n + 2 * (lane_id() % 4) + e;
}

/// per_pair(per_query(query), key, t, n, i) for the keys of this thread's m-th query of a part, key
/// and query being places in the tile.
template <class T, class PerQuery, class PerPair>
__device__ __forceinline__ void for_keys_of(int m, int column, PerQuery per_query,
                                            PerPair per_pair) {
  const int n = m / 2;
  const int e = m % 2;
  const auto query = per_query(query_of<T>(column, n, e));
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      per_pair(query, key_of<T>(t, half), t, n, 2 * half + e);
    }
  }
}

/// The same for all queries of a part.
template <class T, class PerQuery, class PerPair>
__device__ __forceinline__ void for_each_pair(int column, PerQuery per_query, PerPair per_pair) {
#pragma unroll
  for (int m = 0; m < T::kColumns / 4; ++m) for_keys_of<T>(m, column, per_query, per_pair);
}

/// Options of the full instances: scores to base 2; `slope` receives d softcap / ds.
template <class T>
__device__ __forceinline__ void apply_options(const host::KernelParams& params,
                                              const QueryWork& work, int column, int j0,
                                              Transposed<T>& scores, Transposed<T>& slope) {
  const float scale = static_cast<float>(params.problem.scale);
  for_each_pair<T>(
      column, [&](int query) { return RowOptions(params, work, query); },
      [&](const RowOptions& row, int key, int t, int n, int i) {
        float& s = scores.s[t][n][i];
        s = option_score(params, row, j0 + key, scale, s, slope.s[t][n][i]);
      });
}

/// Dropout: factor of each weight, 0 or 1 / (1 - p).
template <class T>
__device__ __forceinline__ void apply_dropout(const host::KernelParams& params,
                                              const QueryWork& work, int column, int j0,
                                              Transposed<T>& weights, Transposed<T>& dp) {
  for_each_pair<T>(
      column, [&](int query) { return RowOptions(params, work, query); },
      [&](const RowOptions& row, int key, int t, int n, int i) {
        const std::uint32_t word = dropout_word(params, row, (j0 + key) / 8, key % 8 / 2);
        const std::uint32_t draw = key % 2 == 0 ? word & 0xffffU : word >> 16;
        const float factor = draw < params.dropout_threshold ? 0.0F : params.kept_scale;
        weights.s[t][n][i] *= factor;
        dp.s[t][n][i] *= factor;
      });
}

/// Scores to P^T = exp2(c s - lse2): the share of one of T::kScoreProducts products, under which it
/// is computed.
template <class T>
__device__ __forceinline__ void to_weights(int product, float c, int column, const float* lse2,
                                           Transposed<T>& scores) {
  constexpr int kQueries = T::kColumns / 4;
  constexpr int kShare = (kQueries + T::kScoreProducts - 1) / T::kScoreProducts;
#pragma unroll
  for (int m = product * kShare; m < (product + 1) * kShare && m < kQueries; ++m) {
    for_keys_of<T>(
        m, column, [&](int query) { return lse2[query]; },
        [&](float lse, int /*key*/, int t, int n, int i) {
          scores.s[t][n][i] = exp2_fast(fmaf(scores.s[t][n][i], c, -lse));
        });
  }
}

/// dS^T = P^T (dP^T - delta), in place of dp.
template <class T>
__device__ __forceinline__ void to_score_gradient(int column, const float* delta,
                                                  const Transposed<T>& weights, Transposed<T>& dp) {
  for_each_pair<T>(
      column, [&](int query) { return delta[query]; },
      [&](float row, int /*key*/, int t, int n, int i) {
        dp.s[t][n][i] = weights.s[t][n][i] * (dp.s[t][n][i] - row);
      });
}

/// x *= factor, element by element.
template <class T>
__device__ __forceinline__ void scale_by(const Transposed<T>& factor, Transposed<T>& x) {
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
    for (int n = 0; n < T::kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x.s[t][n][i] *= factor.s[t][n][i];
    }
  }
}

/// Keys of the tile that one query sees.
struct SeenKeys {
  int lo, hi;
};

/// Pairs that are not visible become exactly 0, whatever was there, as do rows past the last; i0 is
/// the first query of the tile.
template <class T>
__device__ __forceinline__ void clear_hidden(const TileKeys& keys, int rows, int i0, int j0,
                                             int column, Transposed<T>& x) {
  for_each_pair<T>(
      column,
      [&](int query) {
        return SeenKeys{keys.first(i0 + query) - j0, query < rows ? keys.end(i0 + query) - j0 : 0};
      },
      [&](const SeenKeys& seen, int key, int t, int n, int i) {
        float& value = x.s[t][n][i];
        value = key >= seen.lo && key < seen.hi ? value : 0.0F;
      });
}

}  // namespace onchip::cuda::sm80
