// SPDX-License-Identifier: Apache-2.0
// Backward pass on mma.sync: one block owns one tile of keys of a KV head and sweeps the query
// tiles of every head of the group. Scores are computed transposed, S^T = K . Q^T, so that P^T and
// dS^T are already the A operands of dV and dK; only dS goes through shared memory, for dQ.
#pragma once

#include <cstdint>

#include "common/key_work.cuh"
#include "common/options.cuh"
#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "prims/math.cuh"
#include "prims/tile.cuh"

namespace onchip::cuda::sm80 {

/// One instance. Head dimensions above 128 have no registers for dK and dV at once: there one
/// launch computes dV (kDv) and another dK and dQ (kDk).
template <class Element_, int kDim_, int kBr_, int kBc_, int kWarps_, bool kFull_, bool kDv_,
          bool kDk_, int kParts_, int kQStages_, int kBlocksPerSm_>
struct Backward {
  using Element = Element_;
  static constexpr int kDim = kDim_, kBr = kBr_, kBc = kBc_, kWarps = kWarps_;
  static constexpr bool kFull = kFull_, kDv = kDv_, kDk = kDk_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kKeyTiles = kBc / (kWarps * 16);  // 16-key tiles of a warp
  static constexpr int kStages = kQStages_;              // buffers of Q and dO
  static constexpr int kColumns = kBr / kParts_;    // queries whose scores are in registers at once
  static constexpr int kKeyBytes = kBc * kDim * 2;  // K or V
  static constexpr int kQueryBytes = kBr * kDim * 2;  // Q or dO
  static constexpr int kRowBytes = kBr * 8;           // lse and delta
  static constexpr int kDsBytes = kDk ? kBc * kBr * 2 : 0;
  static constexpr int kSharedBytes =
      (kDk ? 2 : 1) * kKeyBytes + kStages * (2 * kQueryBytes + kRowBytes) + kDsBytes;
  // dQ of a query tile: warps tile it as 16 rows x kDqColumns.
  static constexpr int kDqRowTiles = kBr / 16;
  static constexpr int kDqColumns = kDim * kDqRowTiles / kWarps;
  static_assert(kKeyTiles >= 1 && kBc % (kWarps * 16) == 0 && kBr % 64 == 0);
  static_assert(kWarps % kDqRowTiles == 0 && kDqColumns % 16 == 0);
  static_assert(kColumns % 16 == 0);
};

/// Shared memory of a block.
template <class T>
struct BackwardTiles {
  std::uint32_t k, v, q, dout, rows, ds;
  __device__ __forceinline__ explicit BackwardTiles(std::uint32_t base) {
    k = base;
    v = k + T::kKeyBytes;
    q = T::kDk ? v + T::kKeyBytes : v;
    dout = q + T::kStages * T::kQueryBytes;
    ds = dout + T::kStages * T::kQueryBytes;
    rows = ds + T::kDsBytes;
  }
};

/// A warp's 16 * kKeyTiles keys times kColumns queries of the tile.
template <class T>
struct Transposed {
  float s[T::kKeyTiles][T::kColumns / 8][4];
};

/// dK or dV of a warp's keys.
template <class T, bool kUsed>
struct KeySums {
  float x[T::kKeyTiles][T::kDim / 8][4];
};
template <class T>
struct KeySums<T, false> {};

template <class T>
__device__ __forceinline__ void clear(KeySums<T, true>& sums) {
#pragma unroll
  for (auto& tile : sums.x) {
#pragma unroll
    for (auto& x : tile) x[0] = x[1] = x[2] = x[3] = 0.0F;
  }
}
template <class T>
__device__ __forceinline__ void clear(KeySums<T, false>& /*sums*/) {}

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

/// c = keys . queries^T.
template <class T>
__device__ __forceinline__ void multiply_transposed(std::uint32_t keys, std::uint32_t queries,
                                                    Transposed<T>& c) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t a_place =
      rows_first<T::kDim>(keys + warp * T::kKeyTiles * 32 * T::kDim, lane);
  const std::uint32_t b_place = columns_first<T::kDim>(queries, lane);
#pragma unroll
  for (auto& tile : c.s) {
#pragma unroll
    for (auto& x : tile) x[0] = x[1] = x[2] = x[3] = 0.0F;
  }
  constexpr int kSteps = T::kDim / 16;
  constexpr int kColumns = T::kColumns / 16;
  Fragment a[2][T::kKeyTiles];
  Fragment b[2];
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t)
    a[0][t] = load_matrix(block_address<T::kDim>(a_place, t, 0));
  b[0] = load_matrix(block_address<T::kDim>(b_place, 0, 0));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = step * kColumns + n;
      if (i + 1 < kSteps * kColumns) {
        b[(i + 1) % 2] =
            load_matrix(block_address<T::kDim>(b_place, (i + 1) % kColumns, (i + 1) / kColumns));
      }
#pragma unroll
      for (int t = 0; n == 0 && step + 1 < kSteps && t < T::kKeyTiles; ++t) {
        a[(step + 1) % 2][t] = load_matrix(block_address<T::kDim>(a_place, t, step + 1));
      }
#pragma unroll
      for (int t = 0; t < T::kKeyTiles; ++t) {
        mma<typename T::Element>(c.s[t][2 * n], a[step % 2][t], b[i % 2].x[0], b[i % 2].x[1]);
        mma<typename T::Element>(c.s[t][2 * n + 1], a[step % 2][t], b[i % 2].x[2], b[i % 2].x[3]);
      }
    }
  }
}

/// sums += weights . queries, the weights (P^T or dS^T) being in registers.
template <class T, class Sums>
__device__ __forceinline__ void add_key_sums(
    const Fragment (&weights)[T::kKeyTiles][T::kColumns / 16], std::uint32_t queries, Sums& sums) {
  const std::uint32_t b_place = rows_first<T::kDim>(queries, static_cast<int>(threadIdx.x) % 32);
  constexpr int kSteps = T::kColumns / 16;
  constexpr int kColumns = T::kDim / 16;
  Fragment b[2];
  b[0] = load_matrix_transposed(block_address<T::kDim>(b_place, 0, 0));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = step * kColumns + n;
      if (i + 1 < kSteps * kColumns) {
        b[(i + 1) % 2] = load_matrix_transposed(
            block_address<T::kDim>(b_place, (i + 1) / kColumns, (i + 1) % kColumns));
      }
#pragma unroll
      for (int t = 0; t < T::kKeyTiles; ++t) {
        mma<typename T::Element>(sums.x[t][2 * n], weights[t][step], b[i % 2].x[0], b[i % 2].x[1]);
        mma<typename T::Element>(sums.x[t][2 * n + 1], weights[t][step], b[i % 2].x[2],
                                 b[i % 2].x[3]);
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void as_operands(const Transposed<T>& c,
                                            Fragment (&out)[T::kKeyTiles][T::kColumns / 16]) {
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
    for (int n = 0; n < T::kColumns / 16; ++n) {
      out[t][n] = as_operand<typename T::Element>(c.s[t][2 * n], c.s[t][2 * n + 1]);
    }
  }
}

/// Key (within the tile) of accumulator row half `half` of 16-key tile t of this thread.
template <class T>
__device__ __forceinline__ int key_of(int t, int half) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  return (warp * T::kKeyTiles + t) * 16 + lane / 4 + 8 * half;
}

/// Options of the full instances: scores to base 2; `slope` receives d softcap / ds.
template <class T>
__device__ __forceinline__ void apply_options(const host::KernelParams& params,
                                              const QueryWork& work, int column, int j0,
                                              Transposed<T>& scores, Transposed<T>& slope) {
  const float scale = static_cast<float>(params.problem.scale);
#pragma unroll
  for (int n = 0; n < T::kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const RowOptions row(params, work,
                           column + 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + e);
#pragma unroll
      for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& s = scores.s[t][n][2 * half + e];
          s = option_score(params, work, row, j0 + key_of<T>(t, half), scale, s,
                           slope.s[t][n][2 * half + e]);
        }
      }
    }
  }
}

/// Dropout: factor of each weight, 0 or 1 / (1 - p).
template <class T>
__device__ __forceinline__ void apply_dropout(const host::KernelParams& params,
                                              const QueryWork& work, int column, int j0,
                                              Transposed<T>& weights, Transposed<T>& dp) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < T::kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const RowOptions row(params, work, column + 8 * n + 2 * (lane % 4) + e);
#pragma unroll
      for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t word =
              dropout_word(params, row, (j0 + key_of<T>(t, half)) / 8, lane / 8);
          const std::uint32_t draw = lane / 4 % 2 == 0 ? word & 0xffffU : word >> 16;
          const float factor = draw < params.dropout_threshold ? 0.0F : params.kept_scale;
          weights.s[t][n][2 * half + e] *= factor;
          dp.s[t][n][2 * half + e] *= factor;
        }
      }
    }
  }
}

/// Scores to P^T = exp2(c s - lse2).
template <class T>
__device__ __forceinline__ void to_weights(float c, const float2* rows, Transposed<T>& scores) {
#pragma unroll
  for (int n = 0; n < T::kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float lse2 = rows[8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + e].x;
#pragma unroll
      for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& s = scores.s[t][n][2 * half + e];
          s = exp2_fast(fmaf(s, c, -lse2));
        }
      }
    }
  }
}

/// dS^T = P^T (dP^T - delta), in place of dp.
template <class T>
__device__ __forceinline__ void to_score_gradient(const float2* rows, const Transposed<T>& weights,
                                                  Transposed<T>& dp) {
#pragma unroll
  for (int n = 0; n < T::kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float delta = rows[8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + e].y;
#pragma unroll
      for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = dp.s[t][n][2 * half + e];
          x = weights.s[t][n][2 * half + e] * (x - delta);
        }
      }
    }
  }
}

/// Pairs that are not visible become exactly 0, whatever was there; i0 is the first query.
template <class T>
__device__ __forceinline__ void clear_hidden(const TileKeys& keys, int i0, int j0,
                                             Transposed<T>& x) {
#pragma unroll
  for (int n = 0; n < T::kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = i0 + 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + e;
      const int lo = keys.first(i) - j0;
      const int hi = keys.end(i) - j0;
#pragma unroll
      for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& value = x.s[t][n][2 * half + e];
          value = key_of<T>(t, half) >= lo && key_of<T>(t, half) < hi ? value : 0.0F;
        }
      }
    }
  }
}

/// dS^T, packed, to shared memory: rows are keys, columns queries.
template <class T>
__device__ __forceinline__ void store_score_gradient(
    const Fragment (&ds)[T::kKeyTiles][T::kColumns / 16], int column, std::uint32_t tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
    for (int n = 0; n < T::kColumns / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t to =
            tile + chunk_offset<T::kBr>(key_of<T>(t, i % 2), column / 8 + 2 * n + i / 2) +
            lane % 4 * 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(ds[t][n].x[i]) : "memory");
      }
    }
  }
}

/// dQ of the query tile += dS . K, to float32 sums in device memory.
template <class T>
__device__ __forceinline__ void add_dq(std::uint32_t ds, std::uint32_t k, float* sums, int rows,
                                       int dim) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_tile = warp % T::kDqRowTiles;
  const int column0 = warp / T::kDqRowTiles * T::kDqColumns;
  constexpr int kSteps = T::kBc / 16;
  constexpr int kColumns = T::kDqColumns / 16;
  float c[2 * kColumns][4] = {};
  const std::uint32_t a_place = columns_first<T::kBr>(ds, lane);
  const std::uint32_t b_place = rows_first<T::kDim>(k, lane);
  const std::uint32_t a_column = static_cast<std::uint32_t>(row_tile % 4 * 32);
  const std::uint32_t a_base =
      (a_place ^ a_column) + static_cast<std::uint32_t>(row_tile / 4 * 128);
  const std::uint32_t b_base = b_place + static_cast<std::uint32_t>(column0 / 64 * 128);
  static_assert(T::kDqColumns % 64 == 0 || T::kDqColumns == 32,
                "column0 is a multiple of 64, or of 32");
  const std::uint32_t b_flip = static_cast<std::uint32_t>(column0 % 64 * 2);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const Fragment a = load_matrix_transposed(block_address<T::kBr>(a_base, step, 0));
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const Fragment b = load_matrix_transposed(block_address<T::kDim>(b_base ^ b_flip, step, n));
      mma<typename T::Element>(c[2 * n], a, b.x[0], b.x[1]);
      mma<typename T::Element>(c[2 * n + 1], a, b.x[2], b.x[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_tile * 16 + lane / 4 + 8 * half;
    if (row >= rows) continue;
    float* to = sums + row * static_cast<std::int64_t>(dim) + column0 + 2 * (lane % 4);
    if (dim == T::kDim) {
#pragma unroll
      for (int n = 0; n < 2 * kColumns; ++n)
        add_pair(to + 8 * n, c[n][2 * half], c[n][2 * half + 1]);
      continue;
    }
#pragma unroll
    for (int n = 0; n < 2 * kColumns; ++n) {
      if (column0 + 8 * n < dim) add_pair(to + 8 * n, c[n][2 * half], c[n][2 * half + 1]);
    }
  }
}

/// dK or dV of this block's keys through shared memory (each warp its own rows) to device memory.
template <class T>
__device__ __forceinline__ void store_keys(const host::KernelParams& params, const KeyWork& work,
                                           char* shared, std::uint32_t tile, float factor,
                                           const KeySums<T, true>& sums, void* to,
                                           const host::Strides& strides, int dim) {
  using Element = typename T::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int t = 0; t < T::kKeyTiles; ++t) {
#pragma unroll
    for (int n = 0; n < T::kDim / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* x = sums.x[t][n] + 2 * half;
        const std::uint32_t at = tile + chunk_offset<T::kDim>(key_of<T>(t, half), n) + lane % 4 * 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at),
                     "r"(pack<Element>(x[0] * factor, x[1] * factor))
                     : "memory");
      }
    }
  }
  __syncwarp();
  const host::Sequence& s = work.sequence;
  Element* base = static_cast<Element*>(to) +
                  host::offset_of(strides, s.batch, s.k_start, work.first, work.kv_head);
  store_tile<T::kDim, 16 * T::kKeyTiles, Element>(
      shared + (tile - shared_address(shared)), warp * 16 * T::kKeyTiles, work.rows, dim,
      params.aligned, strides.row, [&](int row) { return base + row * strides.row; });
}

/// The query tiles of one head that meet this block's keys: the main loop.
template <class T>
__device__ __forceinline__ void backward_head(const host::KernelParams& params, const KeyWork& work,
                                              int head, const BackwardTiles<T>& tiles, char* shared,
                                              KeySums<T, T::kDk>& dk, KeySums<T, T::kDv>& dv) {
  using Element = typename T::Element;
  const host::Problem& p = params.problem;
  const host::Sequence& s = work.sequence;
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
  const auto load = [&](int tile) {
    const int i0 = tile * T::kBr;
    const std::uint32_t stage = tile % T::kStages;
    load_tile<T::kDim, T::kBr, T::kThreads>(tiles.q + stage * T::kQueryBytes, q + i0 * p.q.row,
                                            p.q.row, q_len - i0, static_cast<int>(p.dim),
                                            params.aligned);
    load_tile<T::kDim, T::kBr, T::kThreads>(tiles.dout + stage * T::kQueryBytes,
                                            dout + i0 * p.dout.row, p.dout.row, q_len - i0,
                                            static_cast<int>(p.dim_v), params.aligned);
    if (static_cast<int>(threadIdx.x) < T::kBr) {
      const int i = i0 + static_cast<int>(threadIdx.x);
      auto* to = reinterpret_cast<float2*>(shared + (tiles.rows - tiles.k) + stage * T::kRowBytes) +
                 threadIdx.x;
      *to = i < q_len ? make_float2(params.lse2[row0 + i], params.delta[row0 + i])
                      : make_float2(kInfinity, 0.0F);
    }
    copy_commit();
  };

  const float c = T::kFull ? 1.0F : static_cast<float>(p.scale) * kLog2e;
  __syncthreads();  // the last head's tiles may still be read
  load(begin);
  for (int tile = begin; tile < end; ++tile) {
    const int i0 = tile * T::kBr;
    const std::uint32_t stage = tile % T::kStages;
    if (T::kStages == 1 && tile > begin) {
      __syncthreads();
      load(tile);
    }
    copy_wait<0>();
    __syncthreads();
    if (T::kStages > 1 && tile + 1 < end) load(tile + 1);
    const std::uint32_t q_tile = tiles.q + stage * T::kQueryBytes;
    const std::uint32_t dout_tile = tiles.dout + stage * T::kQueryBytes;
    const auto* rows =
        reinterpret_cast<const float2*>(shared + (tiles.rows - tiles.k) + stage * T::kRowBytes);
    const int i_last = min(i0 + T::kBr, q_len) - 1;
    const bool masked = keys.first(i_last) > j0 || keys.end(i0) < j0 + T::kBc;
    query.first = i0;
    query.rows = i_last + 1 - i0;

#pragma unroll
    for (int column = 0; column < T::kBr; column += T::kColumns) {
      const std::uint32_t q_part = q_tile + column * T::kDim * 2;
      const std::uint32_t dout_part = dout_tile + column * T::kDim * 2;
      Transposed<T> weights;
      Transposed<T> slope;
      multiply_transposed<T>(tiles.k, q_part, weights);
      if constexpr (T::kFull) apply_options<T>(params, query, column, j0, weights, slope);
      to_weights<T>(c, rows + column, weights);
      if (masked) clear_hidden<T>(keys, i0 + column, j0, weights);
      Transposed<T> dp;
      if constexpr (T::kDk) multiply_transposed<T>(tiles.v, dout_part, dp);
      Transposed<T> kept = weights;
      if constexpr (T::kFull) {
        if (params.dropout_threshold > 0) apply_dropout<T>(params, query, column, j0, kept, dp);
      }
      if constexpr (T::kDv) {
        Fragment operands[T::kKeyTiles][T::kColumns / 16];
        as_operands<T>(kept, operands);
        add_key_sums<T>(operands, dout_part, dv);
      }
      if constexpr (T::kDk) {
        to_score_gradient<T>(rows + column, weights, dp);
        if constexpr (T::kFull) scale_by<T>(slope, dp);
        if (masked) clear_hidden<T>(keys, i0 + column, j0, dp);
        Fragment ds[T::kKeyTiles][T::kColumns / 16];
        as_operands<T>(dp, ds);
        if (params.dq_sum != nullptr) store_score_gradient<T>(ds, column, tiles.ds);
        add_key_sums<T>(ds, q_part, dk);
      }
    }
    if (T::kDk && params.dq_sum != nullptr) {
      __syncthreads();
      add_dq<T>(tiles.ds, tiles.k, params.dq_sum + (row0 + i0) * p.dim, query.rows,
                static_cast<int>(p.dim));
    }
  }
}

template <class T>
__global__ __launch_bounds__(T::kThreads, T::kBlocksPerSm) void backward_kernel(
    const __grid_constant__ host::KernelParams params) {
  using Element = typename T::Element;
  extern __shared__ __align__(128) char shared[];
  const host::Problem& p = params.problem;
  const KeyWork work = find_key_work(params, T::kBc);
  if (work.rows <= 0) return;
  const host::Sequence& s = work.sequence;
  const BackwardTiles<T> tiles(shared_address(shared));
  const int keys = static_cast<int>(s.k_len) - work.first;
  const Element* k = static_cast<const Element*>(params.operands.k) +
                     host::offset_of(p.k, s.batch, s.k_start, work.first, work.kv_head);
  const Element* v = static_cast<const Element*>(params.operands.v) +
                     host::offset_of(p.v, s.batch, s.k_start, work.first, work.kv_head);
  load_tile<T::kDim, T::kBc, T::kThreads>(tiles.k, k, p.k.row, keys, static_cast<int>(p.dim),
                                          params.aligned);
  if constexpr (T::kDk) {
    load_tile<T::kDim, T::kBc, T::kThreads>(tiles.v, v, p.v.row, keys, static_cast<int>(p.dim_v),
                                            params.aligned);
  }
  KeySums<T, T::kDk> dk;
  KeySums<T, T::kDv> dv;
  clear(dk);
  clear(dv);
  const int group = static_cast<int>(p.heads_q) / static_cast<int>(p.heads_kv);
  for (int g = 0; g < group; ++g)
    backward_head<T>(params, work, work.kv_head * group + g, tiles, shared, dk, dv);
  copy_wait<0>();
  __syncthreads();
  if constexpr (T::kDk) {
    store_keys<T>(params, work, shared, tiles.k, static_cast<float>(p.scale), dk,
                  params.operands.dk, p.dk, static_cast<int>(p.dim));
  }
  if constexpr (T::kDv) {
    store_keys<T>(params, work, shared, T::kDk ? tiles.v : tiles.k, 1.0F, dv, params.operands.dv,
                  p.dv, static_cast<int>(p.dim_v));
  }
}

}  // namespace onchip::cuda::sm80
