// SPDX-License-Identifier: Apache-2.0
// Forward pass on mma.sync: one block computes one tile of query rows and sweeps the keys from the
// last block to the first with the running softmax state (m, l, o). docs/algorithm.md derives it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/options.cuh"
#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "prims/math.cuh"
#include "prims/tile.cuh"

namespace onchip::cuda::sm80 {

/// One instance of the forward kernel. A warp owns 16 * kRowTiles query rows, so that each K and V
/// fragment read from shared memory feeds kRowTiles products.
template <class Element_, int kDim_, int kBr_, int kBc_, int kWarps_, bool kFull_,
          int kBlocksPerSm_>
struct Forward {
  using Element = Element_;
  static constexpr int kDim = kDim_, kBr = kBr_, kBc = kBc_, kWarps = kWarps_;
  static constexpr bool kFull = kFull_;  // softcap, bias, ALiBi, dropout, or a scale below 0
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = 2;
  static constexpr int kRowTiles = kBr / (kWarps * 16);
  static constexpr int kRows = 2 * kRowTiles;  // rows of a thread
  static constexpr int kQBytes = kBr * kDim * 2;
  static constexpr int kStageBytes = kBc * kDim * 2;  // of K, and of V
  static constexpr int kSharedBytes = kQBytes + 2 * kStages * kStageBytes;
  static_assert(kRowTiles >= 1 && kBr % (kWarps * 16) == 0 && kBc % 16 == 0);
};

/// Running softmax of a thread's rows. m is the maximum of the scores as the product gives them; l
/// is this thread's share of the sum, added up over the quad at the end.
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

/// s = Q . K^T for this warp's rows.
template <class T>
__device__ __forceinline__ void multiply_qk(std::uint32_t q, std::uint32_t k, Scores<T>& scores) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t a_place = rows_first<T::kDim>(q + warp * T::kRowTiles * 32 * T::kDim, lane);
  const std::uint32_t b_place = columns_first<T::kDim>(k, lane);
#pragma unroll
  for (auto& tile : scores.s) {
#pragma unroll
    for (auto& c : tile) c[0] = c[1] = c[2] = c[3] = 0.0F;
  }
  // Each fragment is loaded one product ahead of its use.
  constexpr int kSteps = T::kDim / 16;
  constexpr int kColumns = T::kBc / 16;
  Fragment a[2][T::kRowTiles];
  Fragment b[2];
#pragma unroll
  for (int t = 0; t < T::kRowTiles; ++t)
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
      for (int t = 0; n == 0 && step + 1 < kSteps && t < T::kRowTiles; ++t) {
        a[(step + 1) % 2][t] = load_matrix(block_address<T::kDim>(a_place, t, step + 1));
      }
#pragma unroll
      for (int t = 0; t < T::kRowTiles; ++t) {
        mma<typename T::Element>(scores.s[t][2 * n], a[step % 2][t], b[i % 2].x[0], b[i % 2].x[1]);
        mma<typename T::Element>(scores.s[t][2 * n + 1], a[step % 2][t], b[i % 2].x[2],
                                 b[i % 2].x[3]);
      }
    }
  }
}

/// o += P . V, P being the scores turned weights.
template <class T>
__device__ __forceinline__ void multiply_pv(const Scores<T>& weights, std::uint32_t v,
                                            State<T>& state) {
  const std::uint32_t b_place = rows_first<T::kDim>(v, static_cast<int>(threadIdx.x) % 32);
  constexpr int kSteps = T::kBc / 16;
  constexpr int kColumns = T::kDim / 16;
  Fragment b[2];
  b[0] = load_matrix_transposed(block_address<T::kDim>(b_place, 0, 0));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    Fragment a[T::kRowTiles];
#pragma unroll
    for (int t = 0; t < T::kRowTiles; ++t) {
      a[t] = as_operand<typename T::Element>(weights.s[t][2 * step], weights.s[t][2 * step + 1]);
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = step * kColumns + n;
      if (i + 1 < kSteps * kColumns) {
        b[(i + 1) % 2] = load_matrix_transposed(
            block_address<T::kDim>(b_place, (i + 1) / kColumns, (i + 1) % kColumns));
      }
#pragma unroll
      for (int t = 0; t < T::kRowTiles; ++t) {
        mma<typename T::Element>(state.o[t][2 * n], a[t], b[i % 2].x[0], b[i % 2].x[1]);
        mma<typename T::Element>(state.o[t][2 * n + 1], a[t], b[i % 2].x[2], b[i % 2].x[3]);
      }
    }
  }
}

/// Scores of keys that a row does not see become -inf; j0 is the block's first key.
template <class T>
__device__ __forceinline__ void mask_scores(const TileKeys& keys, const QueryWork& work, int j0,
                                            Scores<T>& scores) {
  const int column = j0 + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const int position = work.position_of(row_of<T>(r));
    const int lo = keys.first(position) - column;
    const int hi = keys.end(position) - column;
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = 8 * n + e;
        float& s = scores.s[r / 2][n][r % 2 * 2 + e];
        s = at >= lo && at < hi ? s : -kInfinity;
      }
    }
  }
}

/// Softcap, bias and ALiBi; scores leave in base 2.
template <class T>
__device__ __forceinline__ void apply_options(const host::KernelParams& params,
                                              const QueryWork& work, int j0, Scores<T>& scores) {
  const int column = j0 + 2 * (static_cast<int>(threadIdx.x) % 4);
  const float scale = static_cast<float>(params.problem.scale);
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const RowOptions row(params, work, row_of<T>(r));
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = scores.s[r / 2][n][r % 2 * 2 + e];
        float slope;
        s = option_score(params, work, row, column + 8 * n + e, scale, s, slope);
      }
    }
  }
}

/// Weights that dropout drops become 0, after the sum: lse is that without dropout. A block whose
/// first key is no multiple of 8 (an odd split) draws key by key.
template <class T>
__device__ __forceinline__ void drop_weights(const host::KernelParams& params,
                                             const QueryWork& work, int j0, Scores<T>& scores) {
  const int pair = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const RowOptions row(params, work, row_of<T>(r));
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
      float* s = scores.s[r / 2][n] + r % 2 * 2;
      const int j = j0 + 8 * n + 2 * pair;
      std::uint32_t word = dropout_word(params, row, j / 8, j % 8 / 2);
      std::uint32_t next = word;
      if (j0 % 8 != 0) {
        word = j % 2 == 0 ? word : word >> 16;
        next = dropout_word(params, row, (j + 1) / 8, (j + 1) % 8 / 2);
        next = j % 2 == 0 ? next : next << 16;
      }
      if ((word & 0xffffU) < params.dropout_threshold) s[0] = 0.0F;
      if (next >> 16 < params.dropout_threshold) s[1] = 0.0F;
    }
  }
}

/// Takes one block of scores into (m, l) and turns them into weights exp2(c (s - m)); o is rescaled
/// to the new maximum.
template <class T>
__device__ __forceinline__ void online_softmax(float c, Scores<T>& scores, State<T>& state) {
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    auto& tile = scores.s[r / 2];
    const int e = r % 2 * 2;
    float top = state.m[r];
#pragma unroll
    for (auto& s : tile) top = fmaxf(top, fmaxf(s[e], s[e + 1]));
    top = quad_max(top);
    // A row that has seen nothing keeps m = -inf; -inf - (-inf) must not become NaN.
    const float base = top == -kInfinity ? 0.0F : top * c;
    const float alpha = exp2_fast(state.m[r] * c - base);
    state.m[r] = top;
    float sum = 0.0F;
#pragma unroll
    for (auto& s : tile) {
      s[e] = exp2_fast(fmaf(s[e], c, -base));
      s[e + 1] = exp2_fast(fmaf(s[e + 1], c, -base));
      sum += s[e] + s[e + 1];
    }
    state.l[r] = state.l[r] * alpha + sum;
#pragma unroll
    for (auto& o : state.o[r / 2]) {
      o[e] *= alpha;
      o[e + 1] *= alpha;
    }
  }
}

/// Accumulators of a tile of query rows to memory, through shared memory (each warp its own rows of
/// Q's tile) and from there in whole 16-byte stores.
template <class T>
__device__ __forceinline__ void store_rows(const host::KernelParams& params, const QueryWork& work,
                                           char* shared,
                                           const float (&o)[T::kRowTiles][T::kDim / 8][4],
                                           const host::Strides& strides, void* to, int dim) {
  using Element = typename T::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t tile = shared_address(shared);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
    for (int n = 0; n < T::kDim / 8; ++n) {
      const float* x = o[r / 2][n] + r % 2 * 2;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + chunk_offset<T::kDim>(row_of<T>(r), n) +
                                                   lane % 4 * 4),
                   "r"(pack<Element>(x[0], x[1]))
                   : "memory");
    }
  }
  __syncwarp();
  store_tile<T::kDim, 16 * T::kRowTiles, Element>(
      shared, static_cast<int>(threadIdx.x) / 32 * 16 * T::kRowTiles, work.rows, dim,
      params.aligned, work.one_head ? strides.row : 0, QueryRows<Element>(to, strides, work));
}

/// Writes out and lse of a finished tile, or a split's partial results.
template <class T>
__device__ __forceinline__ void finish(const host::KernelParams& params, const QueryWork& work,
                                       float c, char* shared, State<T>& state);

/// One block's whole work.
template <class T>
__device__ __forceinline__ void forward_tile(const host::KernelParams& params,
                                             const QueryWork& work, char* shared) {
  using Element = typename T::Element;
  const host::Problem& p = params.problem;
  const std::uint32_t q = shared_address(shared);
  const std::uint32_t k = q + T::kQBytes;
  const std::uint32_t v = k + T::kStages * T::kStageBytes;
  const host::Sequence& s = work.sequence;
  TileKeys keys = keys_of(p, work);
  const int part_lo = static_cast<int>(work.split * params.split_size);
  // Lengths are on the device: the last part takes what a hint has left out.
  const int part_hi =
      work.split + 1 == params.num_splits
          ? keys.hi
          : static_cast<int>(std::min<std::int64_t>(keys.hi, part_lo + params.split_size));
  keys.k_len = part_hi;  // a part's last block hides the keys of the next part
  // Blocks count from the part's first key, so that a row's bits do not depend on its tile.
  const int first = (max(keys.lo, part_lo) - part_lo) / T::kBc;
  const int last = (part_hi - part_lo + T::kBc - 1) / T::kBc - 1;

  const KeyRows<Element> k_rows(params, params.operands.k, p.k, s, work.kv_head);
  const KeyRows<Element> v_rows(params, params.operands.v, p.v, s, work.kv_head);
  const auto load_keys = [&](int block) {
    const int j0 = part_lo + block * T::kBc;
    const std::uint32_t stage = block % T::kStages * T::kStageBytes;
    load_key_tile<T::kDim, T::kBc, T::kThreads>(k + stage, k_rows, j0, part_hi,
                                                static_cast<int>(p.dim), params.aligned);
    load_key_tile<T::kDim, T::kBc, T::kThreads>(v + stage, v_rows, j0, part_hi,
                                                static_cast<int>(p.dim_v), params.aligned);
  };

  State<T> state;
#pragma unroll
  for (auto& tile : state.o) {
#pragma unroll
    for (auto& o : tile) o[0] = o[1] = o[2] = o[3] = 0.0F;
  }
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) state.m[r] = -kInfinity, state.l[r] = 0.0F;

  const float c =
      T::kFull ? 1.0F
               : static_cast<float>(p.scale) * kLog2e;  // from what the softmax sees to base 2
  if (last >= first) {
    load_query_tile<T::kDim, T::kBr, T::kThreads>(
        q, QueryRows<const Element>(params.operands.q, p.q, work), work.rows,
        static_cast<int>(p.dim), params.aligned);
    load_keys(last);
    copy_commit();
  }
  for (int block = last; block >= first; --block) {
    copy_wait<0>();
    __syncthreads();
    if (block > first) load_keys(block - 1);
    copy_commit();
    const int j0 = part_lo + block * T::kBc;
    const int stage = block % T::kStages * T::kStageBytes;
    Scores<T> scores;
    multiply_qk<T>(q, k + stage, scores);
    if constexpr (T::kFull) apply_options<T>(params, work, j0, scores);
    if (j0 < keys.all_lo || j0 + T::kBc > min(keys.all_hi, part_hi))
      mask_scores<T>(keys, work, j0, scores);
    online_softmax<T>(c, scores, state);
    if constexpr (T::kFull) {
      if (params.dropout_threshold > 0) drop_weights<T>(params, work, j0, scores);
    }
    multiply_pv<T>(scores, v + stage, state);
  }
  finish<T>(params, work, c, shared, state);
}

template <class T>
__global__ __launch_bounds__(T::kThreads, T::kBlocksPerSm) void forward_kernel(
    const __grid_constant__ host::KernelParams params) {
  extern __shared__ __align__(128) char shared[];
  const QueryWork work = find_query_work(params, T::kBr);
  if (work.rows > 0) forward_tile<T>(params, work, shared);
}

template <class T>
__device__ __forceinline__ void finish(const host::KernelParams& params, const QueryWork& work,
                                       float c, char* shared, State<T>& state) {
  using Element = typename T::Element;
  const host::Problem& p = params.problem;
  const host::Sequence& s = work.sequence;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dim_v = static_cast<int>(p.dim_v);
  const bool whole = params.num_splits == 1;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const int row = row_of<T>(r);
    const int position = work.position_of(row);
    const int head = work.head_of(row);
    float l = quad_sum(state.l[r]);
    float m = state.m[r] == -kInfinity ? 0.0F : state.m[r] * c;
    const bool sees_nothing = l == 0.0F || position >= s.q_len;
    float factor = params.kept_scale;
    if (p.has_sinks && whole && !sees_nothing && row < work.rows) {
      const float sink = kLog2e * static_cast<const float*>(params.operands.sinks)[head * p.sinks];
      const float top = fmaxf(m, sink);
      factor *= exp2_fast(m - top);
      l = l * exp2_fast(m - top) + exp2_fast(sink - top);
      m = top;
    }
    factor = sees_nothing ? 0.0F : factor / l;
    const float lse = sees_nothing ? -kInfinity : kLn2 * (m + log2f(l));
#pragma unroll
    for (auto& o : state.o[r / 2]) {
      const int e = r % 2 * 2;
      o[e] = sees_nothing ? 0.0F : o[e] * factor;
      o[e + 1] = sees_nothing ? 0.0F : o[e + 1] * factor;
    }
    if (row >= work.rows || lane % 4 != 0) continue;
    if (!whole) {
      params.partial_lse[partial_row(params, work, row)] = lse;
    } else if (params.operands.lse != nullptr) {
      static_cast<float*>(
          params.operands.lse)[host::offset_of(p.lse, s.batch, s.q_start, position, head)] = lse;
    }
  }
  if (!whole) {
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const int row = row_of<T>(r);
      if (row >= work.rows) continue;
      float* to = params.partial_out + partial_row(params, work, row) * dim_v;
#pragma unroll
      for (int n = 0; n < T::kDim / 8; ++n) {
        const int column = 8 * n + 2 * (lane % 4);
        if (column >= dim_v) continue;
        *reinterpret_cast<float2*>(to + column) =
            make_float2(state.o[r / 2][n][r % 2 * 2], state.o[r / 2][n][r % 2 * 2 + 1]);
      }
    }
    return;
  }
  store_rows<T>(params, work, shared, state.o, p.out, params.operands.out, dim_v);
}

}  // namespace onchip::cuda::sm80
