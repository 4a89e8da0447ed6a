// SPDX-License-Identifier: Apache-2.0
// Forward pass on mma.sync: one block computes one tile of query rows and sweeps the keys from the
// last block to the first with the running softmax state (m, l, o). docs/algorithm.md derives it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/options.cuh"
#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "prims/cp_async.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"
#include "prims/shared.cuh"
#include "prims/tile.cuh"
#include "sm80/fwd_tile.cuh"

namespace onchip::cuda::sm80 {

/// Scores of keys that a row does not see become -inf; j0 is the block's first key.
template <class T>
__device__ __forceinline__ void mask_scores(const TileKeys& keys, const QueryWork& work, int j0,
                                            Scores<T>& scores) {
  const int column = j0 + 2 * (static_cast<int>(threadIdx.x) % 4);
  const bool early = j0 < keys.all_lo;  // some row's first key lies behind the block's
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const int position = work.position_of(row_here<T>(r));
    const int end = keys.end(position) - column;
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
      float* s = scores.s[r / 2][n] + r % 2 * 2;
      if (8 * n >= end) s[0] = -kInfinity;
      if (8 * n + 1 >= end) s[1] = -kInfinity;
    }
    if (!early) continue;
    const int first = keys.first(position) - column;
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
      float* s = scores.s[r / 2][n] + r % 2 * 2;
      if (8 * n < first) s[0] = -kInfinity;
      if (8 * n + 1 < first) s[1] = -kInfinity;
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
    const RowOptions row(params, work, row_here<T>(r));
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = scores.s[r / 2][n][r % 2 * 2 + e];
        float slope;
        s = option_score(params, row, column + 8 * n + e, scale, s, slope);
      }
    }
  }
}

/// Weights that dropout drops become 0, after the sum: lse is that without dropout. A block whose
/// first key is no multiple of 8 (an odd split) draws key by key.
template <class T>
__device__ __forceinline__ void drop_weights(const host::KernelParams& params,
                                             const QueryWork& work, int j0, Weights<T>& weights) {
  const int pair = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const RowOptions row(params, work, row_here<T>(r));
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
      const int j = j0 + 8 * n + 2 * pair;
      std::uint32_t word = dropout_word(params, row, j / 8, j % 8 / 2);
      std::uint32_t next = word;
      if (j0 % 8 != 0) {
        word = j % 2 == 0 ? word : word >> 16;
        next = dropout_word(params, row, (j + 1) / 8, (j + 1) % 8 / 2);
        next = j % 2 == 0 ? next : next << 16;
      }
      const std::uint32_t low = (word & 0xffffU) < params.dropout_threshold ? 0 : 0xffffU;
      const std::uint32_t high = next >> 16 < params.dropout_threshold ? 0 : 0xffff0000U;
      weights.p[r / 2][n / 2].x[n % 2 * 2 + r % 2] &= low | high;
    }
  }
}

/// How far, in powers of 2, scores may pass the m that weights are taken against. Weights then stay
/// below 2^kSlack, and m hardly ever moves after the first block.
inline constexpr float kSlack = 8.0F;

/// Moves m of the rows whose scores pass it by more than kSlack up to their maximum; l and o
/// follow. A row moves whatever the other rows of its warp do.
template <class T>
__device__ __forceinline__ void raise_maximum(float c, const Scores<T>& scores, State<T>& state) {
  float top[T::kRows];
  bool raised = false;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const auto& tile = scores.s[r / 2];
    const int e = r % 2 * 2;
    top[r] = fmaxf(tile[0][e], tile[0][e + 1]);
#pragma unroll
    for (int n = 1; n < T::kBc / 8; ++n) top[r] = fmaxf(top[r], fmaxf(tile[n][e], tile[n][e + 1]));
    raised |= (top[r] - state.m[r]) * c > kSlack;
  }
  if (!__any_sync(0xffffffffU, raised)) return;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const float row_top = quad_max(top[r]);
    const bool moves = (row_top - state.m[r]) * c > kSlack;
    const float alpha = moves ? exp2_fast((state.m[r] - row_top) * c) : 1.0F;
    state.m[r] = moves ? row_top : state.m[r];
    state.l[r] *= alpha;
#pragma unroll
    for (auto& o : state.o[r / 2]) {
      o[r % 2 * 2] *= alpha;
      o[r % 2 * 2 + 1] *= alpha;
    }
  }
}

/// Takes one block of scores into (m, l) and turns them into weights exp2(c (s - m)).
template <class T>
__device__ __forceinline__ void online_softmax(float c, Scores<T>& scores, State<T>& state) {
  raise_maximum<T>(c, scores, state);
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const int e = r % 2 * 2;
    // A row that has seen nothing keeps m = -inf; -inf - (-inf) must not become NaN.
    const float base = state.m[r] == -kInfinity ? 0.0F : state.m[r] * c;
#pragma unroll
    for (auto& s : scores.s[r / 2]) {
      s[e] = exp2_fast(fmaf(s[e], c, -base));
      s[e + 1] = exp2_fast(fmaf(s[e + 1], c, -base));
      state.l[r] += s[e] + s[e + 1];
    }
  }
}

/// Accumulators of a tile of query rows to memory, through shared memory (each warp its own rows of
/// Q's tile, which no other warp reads) and from there in whole 16-byte stores.
template <class T>
__device__ __forceinline__ void store_rows(const host::KernelParams& params, const QueryWork& work,
                                           char* shared,
                                           const float (&o)[T::kRowTiles][T::kDim / 8][4],
                                           const host::Strides& strides, void* to, int dim) {
  using Element = typename T::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t tile = shared_address(shared);
  __syncwarp();
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
    for (int n = 0; n < T::kDim / 8; ++n) {
      const float* x = o[r / 2][n] + r % 2 * 2;
      store_shared(tile + chunk_offset<T::kDim>(row_of<T>(r), n) + lane % 4 * 4,
                   pack<Element>(x[0], x[1]));
    }
  }
  __syncwarp();
  store_tile<T::kDim, 16 * T::kRowTiles, Element>(
      shared, static_cast<int>(threadIdx.x) / 32 * 16 * T::kRowTiles, work.rows, dim,
      params.aligned, work.one_head ? strides.row : 0, QueryRows<Element>(to, strides, work));
}

/// Sinks join the sums: each is a score with a value of 0.
template <class T>
__device__ __forceinline__ void add_sinks(const host::KernelParams& params, const QueryWork& work,
                                          float (&m)[T::kRows], float (&l)[T::kRows],
                                          float (&factor)[T::kRows]) {
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const int row = row_of<T>(r);
    if (l[r] == 0.0F || row >= work.rows) continue;
    const float sink =
        kLog2e *
        static_cast<const float*>(params.operands.sinks)[work.head_of(row) * params.problem.sinks];
    const float top = fmaxf(m[r], sink);
    const float alpha = exp2_fast(m[r] - top);
    factor[r] *= alpha;
    l[r] = l[r] * alpha + exp2_fast(sink - top);
    m[r] = top;
  }
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
  const auto load_keys = [&](int block, auto whole) {
    const int j0 = part_lo + block * T::kBc;
    const std::uint32_t stage = block % T::kStages * T::kStageBytes;
    load_key_tile<T::kDim, T::kBc, T::kThreads, whole>(k + stage, k_rows, j0, part_hi,
                                                       static_cast<int>(p.dim), params.aligned);
    load_key_tile<T::kDim, T::kBc, T::kThreads, whole>(v + stage, v_rows, j0, part_hi,
                                                       static_cast<int>(p.dim_v), params.aligned);
    copy_commit();
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
  Query<T> query(q);
  const std::uint32_t k_place = key_place<T>(k);
  const std::uint32_t v_place = value_place<T>(v);
  if (last >= first) {
    load_query_tile<T::kDim, T::kBr, T::kThreads>(
        q, QueryRows<const Element>(params.operands.q, p.q, work), work.rows,
        static_cast<int>(p.dim), params.aligned);
    load_keys(last, std::false_type());
    copy_wait<0>();
    __syncthreads();
    query.keep();
  }
  for (int block = last; block >= first; --block) {
    if (block > first) load_keys(block - 1, std::true_type());  // only the last can be cut short
    const int j0 = part_lo + block * T::kBc;
    const std::uint32_t stage = block % T::kStages * T::kStageBytes;
    Scores<T> scores;
    multiply_qk<T>(query, k_place + stage, scores);
    if constexpr (T::kFull) apply_options<T>(params, work, j0, scores);
    if (j0 < keys.all_lo || j0 + T::kBc > min(keys.all_hi, part_hi))
      mask_scores<T>(keys, work, j0, scores);
    online_softmax<T>(c, scores, state);
    if constexpr (T::kFull) {
      Weights<T> weights(scores);
      if (params.dropout_threshold > 0) drop_weights<T>(params, work, j0, weights);
      multiply_pv<T>(weights, v_place + stage, state);
    } else {
      multiply_pv<T>(scores, v_place + stage, state);
    }
    copy_wait<0>();
    __syncthreads();
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
  float m[T::kRows], l[T::kRows], factor[T::kRows];
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    m[r] = state.m[r] == -kInfinity ? 0.0F : state.m[r] * c;
    l[r] = quad_sum(state.l[r]);
    if (work.position_of(row_of<T>(r)) >= s.q_len) l[r] = 0.0F;
    factor[r] = params.kept_scale;
  }
  if (p.has_sinks && whole) add_sinks<T>(params, work, m, l, factor);
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const bool sees_nothing = l[r] == 0.0F;
    factor[r] = __fdividef(factor[r], l[r]);
#pragma unroll
    for (auto& o : state.o[r / 2]) {
      const int e = r % 2 * 2;
      o[e] = sees_nothing ? 0.0F : o[e] * factor[r];
      o[e + 1] = sees_nothing ? 0.0F : o[e + 1] * factor[r];
    }
    const int row = row_of<T>(r);
    if (row >= work.rows || lane % 4 != 0) continue;
    const float lse = sees_nothing ? -kInfinity : kLn2 * (m[r] + __log2f(l[r]));
    if (!whole) {
      params.partial_lse[partial_row(params, work, row)] = lse;
    } else if (params.operands.lse != nullptr) {
      *QueryRows<float>(params.operands.lse, p.lse, work)(row) = lse;
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
