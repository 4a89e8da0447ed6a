// SPDX-License-Identifier: Apache-2.0
// Query tile by block of keys on mma.sync: what a thread holds, and the products S = Q K^T and
// O += P V. dQ in fixed order and dbias take the same.
#pragma once

#include <cstdint>

#include "prims/math.cuh"
#include "prims/mma.cuh"
#include "prims/tile.cuh"
#include "prims/warp_product.cuh"

namespace onchip::cuda::sm80 {

/// One instance of the forward kernel. A warp owns 16 * kRowTiles query rows, so that each K and V
/// fragment read from shared memory feeds kRowTiles products.
template <class Element_, int kDim_, int kBr_, int kBc_, int kWarps_, bool kFull_,
          int kBlocksPerSm_, bool kKeepQuery_ = false>
struct Forward {
  using Element = Element_;
  static constexpr int kDim = kDim_, kBr = kBr_, kBc = kBc_, kWarps = kWarps_;
  static constexpr bool kFull = kFull_;  // softcap, bias, ALiBi, dropout, or a scale below 0
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kKeepQuery = kKeepQuery_;  // Q in registers: shared memory is the limit
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = 2;
  static constexpr int kRowTiles = kBr / (kWarps * 16);
  static constexpr int kRows = 2 * kRowTiles;  // rows of a thread
  static constexpr int kQBytes = kBr * kDim * 2;
  static constexpr int kStageBytes = kBc * kDim * 2;  // of K, and of V
  static constexpr int kSharedBytes = kQBytes + 2 * kStages * kStageBytes;
  static_assert(kRowTiles >= 1 && kBr % (kWarps * 16) == 0 && kBc % 16 == 0);
};

/// Running softmax of a thread's rows. m is what weights are taken against, in the unit of the
/// product: a score that is the greatest, or up to kSlack less. l is this thread's share of the
/// sum, added up over the quad at the end.
template <class T>
struct State {
  float o[T::kRowTiles][T::kDim / 8][4];
  float m[T::kRows], l[T::kRows];
};

template <class T>
struct Scores {
  float s[T::kRowTiles][T::kBc / 8][4];
};

/// Row of the tile that belongs to index r < kRows of this thread.
template <class T>
__device__ __forceinline__ int row_of(int r) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return (warp * T::kRowTiles + r / 2) * 16 + lane / 4 + r % 2 * 8;
}

/// The same, but computed where it stands: the compiler else carries positions, slopes and offsets
/// of every row through the loop over blocks, in registers that the products need.
template <class T>
__device__ __forceinline__ int row_here(int r) {
  int row = row_of<T>(r);
  asm volatile("" : "+r"(row));
  return row;
}

/// This warp's rows of Q, read from its tile in shared memory as they are needed or once for all.
template <class T>
struct Query {
  std::uint32_t place;
  Fragment kept[T::kRowTiles][T::kKeepQuery ? T::kDim / 16 : 1];

  __device__ __forceinline__ explicit Query(std::uint32_t tile)
      : place(rows_first<T::kDim>(
            tile + static_cast<int>(threadIdx.x) / 32 * T::kRowTiles * 32 * T::kDim,
            static_cast<int>(threadIdx.x) % 32)) {}
  __device__ __forceinline__ Fragment load(int t, int step) const {
    return load_matrix(block_address<T::kDim>(place, t, step));
  }
  __device__ __forceinline__ Fragment operator()(int t, int step) const {
    if constexpr (T::kKeepQuery) return kept[t][step];
    return load(t, step);
  }
  /// The tile has arrived.
  __device__ __forceinline__ void keep() {
    if constexpr (T::kKeepQuery) {
#pragma unroll
      for (int t = 0; t < T::kRowTiles; ++t) {
#pragma unroll
        for (int step = 0; step < T::kDim / 16; ++step) kept[t][step] = load(t, step);
      }
    }
  }
};

/// This lane's place in a tile of K, and of V: what the products start from.
template <class T>
__device__ __forceinline__ std::uint32_t key_place(std::uint32_t tile) {
  return columns_first<T::kDim>(tile, static_cast<int>(threadIdx.x) % 32);
}
template <class T>
__device__ __forceinline__ std::uint32_t value_place(std::uint32_t tile) {
  return rows_first<T::kDim>(tile, static_cast<int>(threadIdx.x) % 32);
}

/// s = Q . K^T for this warp's rows.
template <class T>
__device__ __forceinline__ void multiply_qk(const Query<T>& q, std::uint32_t k_place,
                                            Scores<T>& scores) {
#pragma unroll
  for (auto& tile : scores.s) {
#pragma unroll
    for (auto& c : tile) c[0] = c[1] = c[2] = c[3] = 0.0F;
  }
  warp_product<typename T::Element, T::kDim / 16>(
      q, [&](int step, int n) { return load_matrix(block_address<T::kDim>(k_place, n, step)); },
      scores.s);
}

/// Weights of 16 keys as the left operand of P . V, from the scores that were turned into them.
template <class T>
__device__ __forceinline__ Fragment operand_of(const Scores<T>& weights, int t, int step) {
  return as_operand<typename T::Element>(weights.s[t][2 * step], weights.s[t][2 * step + 1]);
}

/// A block's operands at once: half the registers, where more work stands before the product.
template <class T>
struct Weights {
  Fragment p[T::kRowTiles][T::kBc / 16];

  __device__ __forceinline__ explicit Weights(const Scores<T>& scores) {
#pragma unroll
    for (int t = 0; t < T::kRowTiles; ++t) {
#pragma unroll
      for (int step = 0; step < T::kBc / 16; ++step) p[t][step] = operand_of<T>(scores, t, step);
    }
  }
};

template <class T>
__device__ __forceinline__ Fragment operand_of(const Weights<T>& weights, int t, int step) {
  return weights.p[t][step];
}

/// o += P . V
template <class T, class P>
__device__ __forceinline__ void multiply_pv(const P& weights, std::uint32_t v_place,
                                            State<T>& state) {
  constexpr int kSteps = T::kBc / 16;
  constexpr int kColumns = T::kDim / 16;
  Fragment b[2];
  b[0] = load_matrix_transposed(block_address<T::kDim>(v_place, 0, 0));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    Fragment a[T::kRowTiles];
#pragma unroll
    for (int t = 0; t < T::kRowTiles; ++t) a[t] = operand_of<T>(weights, t, step);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = step * kColumns + n;
      if (i + 1 < kSteps * kColumns) {
        b[(i + 1) % 2] = load_matrix_transposed(
            block_address<T::kDim>(v_place, (i + 1) / kColumns, (i + 1) % kColumns));
      }
#pragma unroll
      for (int t = 0; t < T::kRowTiles; ++t) {
        mma<typename T::Element>(state.o[t][2 * n], a[t], b[i % 2].x[0], b[i % 2].x[1]);
        mma<typename T::Element>(state.o[t][2 * n + 1], a[t], b[i % 2].x[2], b[i % 2].x[3]);
      }
    }
  }
}

}  // namespace onchip::cuda::sm80
