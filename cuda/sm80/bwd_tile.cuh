// SPDX-License-Identifier: Apache-2.0
// Backward pass on mma.sync: the shape of a block and its five products.
//
//   S^T = K Q^T, dP^T = V dO^T       keys x queries, cut among kKeyWarps x kQueryWarps warps
//   dV += P^T dO, dK += dS^T Q       keys x D, cut the same way
//   dQ += dS K                       queries x D
//
// Scores are computed transposed, so that P^T and dS^T are the A operands of dV and dK. A warp that
// has all queries of its keys (kQueryWarps 1) feeds them from registers; else they pass through
// shared memory, which then serves more products for each row loaded.
#pragma once

#include <cstdint>

#include "common/dq_sum.cuh"
#include "prims/math.cuh"
#include "prims/mma.cuh"
#include "prims/shared.cuh"
#include "prims/tile.cuh"
#include "prims/warp_product.cuh"

namespace onchip::cuda::sm80 {

/// One instance.
template <class Element_, int kDim_, int kBr_, int kBc_, int kKeyWarps_, int kQueryWarps_,
          bool kFull_, int kParts_, int kStages_, int kBuffers_, int kBlocksPerSm_>
struct Backward {
  using Element = Element_;
  static constexpr int kDim = kDim_, kBr = kBr_, kBc = kBc_;
  static constexpr int kKeyWarps = kKeyWarps_, kQueryWarps = kQueryWarps_;
  static constexpr bool kFull = kFull_;
  static constexpr int kStages = kStages_;    // of Q and dO
  static constexpr int kBuffers = kBuffers_;  // of P and dS
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarps = kKeyWarps * kQueryWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr bool kShared = kQueryWarps > 1;  // P goes through shared memory
  // Of one warp: 16-key tiles, queries, those whose scores it holds at once, columns of dK and dV.
  static constexpr int kKeyTiles = kBc / (kKeyWarps * 16);
  static constexpr int kQueries = kBr / kQueryWarps;
  static constexpr int kColumns = kQueries / kParts_;
  static constexpr int kSumColumns = kDim / kQueryWarps;
  // How many products ahead fragments are loaded: as far as the registers go.
  static constexpr int kScoresAhead = kShared ? 3 : 4;
  static constexpr int kSumsAhead = kShared ? 1 : 2;
  // Of one warp in dQ: 32 queries, kDqColumns columns.
  static constexpr int kDqRowWarps = kBr / 32;
  static constexpr int kDqColumns = kDim * kDqRowWarps / kWarps;
  static constexpr int kScoreProducts = kDim / 16 * (kColumns / 16);
  static constexpr int kKeyBytes = kBc * kDim * 2;         // K or V
  static constexpr int kQueryBytes = kBr * kDim * 2;       // Q or dO
  static constexpr int kScoreRow = kBr < 64 ? 64 : kBr;    // a tile's row is at least 8 chunks
  static constexpr int kScoreBytes = kBc * kScoreRow * 2;  // P or dS
  static constexpr int kRowBytes = kBr * 8;                // lse and delta
  static constexpr int kSharedBytes = 2 * kKeyBytes + kStages * (2 * kQueryBytes + kRowBytes) +
                                      kBuffers * (kShared ? 2 : 1) * kScoreBytes;
  static_assert(kBc % (kKeyWarps * 16) == 0 && kBr % 32 == 0 && kColumns % 16 == 0);
  static_assert(kQueryWarps == 1 || kSumColumns % 64 == 0);
  static_assert(kDqColumns == 32 || kDqColumns % 64 == 0);
};

/// Shared memory of a block.
template <class T>
struct BackwardTiles {
  std::uint32_t k, v, queries, ds, p, rows;
  __device__ __forceinline__ explicit BackwardTiles(std::uint32_t base)
      : k(base),
        v(k + T::kKeyBytes),
        queries(v + T::kKeyBytes),
        ds(queries + T::kStages * 2 * T::kQueryBytes),
        p(ds + T::kBuffers * T::kScoreBytes),
        rows(p + (T::kShared ? T::kBuffers * T::kScoreBytes : 0)) {}
};

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

/// First key of this thread's warp, and its first query.
template <class T>
__device__ __forceinline__ int first_key() {
  return warp_id() / T::kQueryWarps * T::kKeyTiles * 16;
}
template <class T>
__device__ __forceinline__ int first_query() {
  return warp_id() % T::kQueryWarps * T::kQueries;
}

/// A warp's 16 * kKeyTiles keys times kColumns queries of the tile.
template <class T>
struct Transposed {
  float s[T::kKeyTiles][T::kColumns / 8][4];
};

/// The same as 16-bit A operands.
template <class T>
struct Operands {
  Fragment x[T::kKeyTiles][T::kColumns / 16];

  __device__ __forceinline__ explicit Operands(const Transposed<T>& c) {
#pragma unroll
    for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
      for (int n = 0; n < T::kColumns / 16; ++n) {
        x[t][n] = as_operand<typename T::Element>(c.s[t][2 * n], c.s[t][2 * n + 1]);
      }
    }
  }
};

/// A warp's part of dK or dV.
template <class T>
struct KeySums {
  float x[T::kKeyTiles][T::kSumColumns / 8][4] = {};
};

/// c = keys . queries^T of this warp; `column`: first query of the part, within the warp's.
/// `beside` is called for each of T::kScoreProducts products.
template <class T, class Beside = NothingBeside>
__device__ __forceinline__ void multiply_transposed(std::uint32_t keys, std::uint32_t queries,
                                                    int column, Transposed<T>& c,
                                                    Beside beside = {}) {
  const std::uint32_t a_place = rows_first<T::kDim>(keys + first_key<T>() * T::kDim * 2, lane_id());
  const std::uint32_t b_place =
      columns_first<T::kDim>(queries + (first_query<T>() + column) * T::kDim * 2, lane_id());
#pragma unroll
  for (auto& tile : c.s) {
#pragma unroll
    for (auto& x : tile) x[0] = x[1] = x[2] = x[3] = 0.0F;
  }
  warp_product<typename T::Element, T::kDim / 16, T::kScoresAhead>(
      [&](int t, int step) { return load_matrix(block_address<T::kDim>(a_place, t, step)); },
      [&](int step, int n) { return load_matrix(block_address<T::kDim>(b_place, n, step)); }, c.s,
      beside);
}

/// sums += weights . queries for kSteps times 16 queries: weights(t, step) is the A operand.
template <class T, int kSteps, class Weights>
__device__ __forceinline__ void add_key_sums(Weights weights, std::uint32_t queries,
                                             KeySums<T>& sums) {
  const std::uint32_t b_place =
      rows_first<T::kDim>(queries, lane_id()) +
      (T::kShared ? warp_id() % T::kQueryWarps * (T::kSumColumns * 2) : 0);
  warp_product<typename T::Element, kSteps, T::kSumsAhead>(
      weights,
      [&](int step, int n) {
        return load_matrix_transposed(block_address<T::kDim>(b_place, step, n));
      },
      sums.x);
}

/// The weights of a part, in registers.
template <class T>
__device__ __forceinline__ void add_key_sums(const Operands<T>& weights, std::uint32_t queries,
                                             KeySums<T>& sums) {
  add_key_sums<T, T::kColumns / 16>([&](int t, int step) { return weights.x[t][step]; }, queries,
                                    sums);
}

/// The weights of the whole tile, in shared memory: rows are keys.
template <class T>
__device__ __forceinline__ void add_key_sums(std::uint32_t weights, std::uint32_t queries,
                                             KeySums<T>& sums) {
  const std::uint32_t a_place =
      rows_first<T::kScoreRow>(weights + first_key<T>() * T::kScoreRow * 2, lane_id());
  add_key_sums<T, T::kBr / 16>(
      [&](int t, int step) { return load_matrix(block_address<T::kScoreRow>(a_place, t, step)); },
      queries, sums);
}

/// P^T or dS^T of a part to shared memory: rows are keys, columns queries.
template <class T>
__device__ __forceinline__ void store_scores(const Operands<T>& from, int column,
                                             std::uint32_t tile) {
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
    for (int n = 0; n < T::kColumns / 16; ++n) {
      const int key = first_key<T>() + t * 16;
      const int chunk = (first_query<T>() + column) / 8 + 2 * n;
#if __CUDA_ARCH__ >= 900
      const int lane = lane_id();
      store_matrix(tile + chunk_offset<T::kScoreRow>(key + lane % 16, chunk + lane / 16),
                   from.x[t][n]);
#else
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t row =
            tile + chunk_offset<T::kScoreRow>(key + lane_id() / 4 + 8 * (i % 2), chunk + i / 2);
        store_shared(row + lane_id() % 4 * 4, from.x[t][n].x[i]);
      }
#endif
    }
  }
}

/// dQ of the query tile += dS . K, to float32 sums in device memory.
template <class T>
__device__ __forceinline__ void add_dq(std::uint32_t ds, std::uint32_t k, float* sums, int rows,
                                       int dim) {
  const int row_warp = warp_id() % T::kDqRowWarps;
  const int column0 = warp_id() / T::kDqRowWarps * T::kDqColumns;
  constexpr int kColumns = T::kDqColumns / 16;
  float c[2][2 * kColumns][4] = {};
  // 32 queries, and 32 columns, are 4 chunks: a flip of address bit 6.
  const std::uint32_t a_place =
      (columns_first<T::kScoreRow>(ds, lane_id()) ^ (row_warp % 2 * 64)) + row_warp / 2 * 128;
  const std::uint32_t b_place =
      (rows_first<T::kDim>(k, lane_id()) ^ (column0 / 32 % 2 * 64)) + column0 / 64 * 128;
  warp_product<typename T::Element, T::kBc / 16, T::kSumsAhead>(
      [&](int t, int step) {
        return load_matrix_transposed(block_address<T::kScoreRow>(a_place, step, t));
      },
      [&](int step, int n) {
        return load_matrix_transposed(block_address<T::kDim>(b_place, step, n));
      },
      c);
  const int pitch = dq_pitch(dim);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = row_warp * 32 + lane_id() / 4 + 8 * r;
    if (row >= rows) continue;
    float* to = sums + row * pitch + column0;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const float* left = c[r / 2][2 * n] + r % 2 * 2;
      const float* right = c[r / 2][2 * n + 1] + r % 2 * 2;
      if (column0 + 16 * n < pitch) {
        add_dq_group(to + 16 * n, lane_id() % 4, left[0], left[1], right[0], right[1]);
      }
    }
  }
}

}  // namespace onchip::cuda::sm80
