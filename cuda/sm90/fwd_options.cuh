// SPDX-License-Identifier: Apache-2.0
// Hopper forward: options of the full instances, in registers. The lean ones have none of them.
#pragma once

#include <cstdint>

#include "prims/fragment.cuh"
#include "prims/math.cuh"
#include "prims/philox.cuh"
#include "sm90/fwd_softmax.cuh"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

/// A row's stretch of the bias: where its key 0 is, and the first key that has none. A packed
/// sequence may be longer than the bias: rows and keys beyond it get none.
struct BiasRow {
  std::int64_t at;
  int end;

  __device__ __forceinline__ BiasRow(const host::Problem& p, const Tile& tile,
                                     const RowPlace& place)
      : at(tile.batch * p.bias.batch + place.head * p.bias.head + place.position * p.bias.row) {
    const host::BiasShape& shape = p.bias_shape;
    const bool beyond = !place.counts || (shape.row != 1 && place.position >= shape.row);
    end = beyond           ? 0
          : shape.col == 1 ? tile.k_len
                           : static_cast<int>(min(shape.col, std::int64_t{tile.k_len}));
  }
};

/// Adds the bias, in base 2; `row` is this thread's first row, `column` its first key.
template <class T, class Value>
__device__ __forceinline__ void add_bias(const ForwardParams& params, const Tile& tile, int row,
                                         int column, float (&s)[T::kBc / 2]) {
  const host::Problem& p = params.common.problem;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const BiasRow bias(p, tile, RowPlace(params, tile, row + 8 * r));
    const auto* values = static_cast<const Value*>(params.common.operands.bias) + bias.at;
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = column + 8 * n + e;
        if (key >= bias.end) continue;
        const auto value = static_cast<float>(values[key * p.bias.col]);
        s[4 * n + 2 * r + e] = fmaf(value, kLog2e, s[4 * n + 2 * r + e]);
      }
    }
  }
}

/// Softcap, bias and ALiBi; scores leave in base 2. `row` is this thread's first row.
template <class T>
__device__ __forceinline__ void apply_options(const ForwardParams& params, const Tile& tile,
                                              int row, int j0, float (&s)[T::kBc / 2]) {
  const host::Problem& p = params.common.problem;
  const auto scale = static_cast<float>(p.scale);
  const auto cap = static_cast<float>(p.softcap);
  if (cap > 0) {
    const float inner = scale / cap;
    for_each_score<T>(s, [&](float& x, int, int) { x = cap * tanhf(inner * x); });
  }
  const float outer = cap > 0 ? kLog2e : scale * kLog2e;
  const int column = j0 + 2 * (lane_id() % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowPlace place(params, tile, row + 8 * r);
    const auto diagonal = static_cast<float>(place.position + tile.k_len - tile.q_len - column);
    float slope = 0.0F;
    if (p.has_alibi && place.counts) {
      const auto* slopes = static_cast<const float*>(params.common.operands.alibi_slopes);
      slope = kLog2e * slopes[tile.batch * p.alibi_batch + place.head * p.alibi_head];
    }
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * n + 2 * r + e];
        x = fmaf(x, outer, -slope * fabsf(diagonal - static_cast<float>(8 * n + e)));
      }
    }
  }
  if (p.bias_dtype == DType::float32) {
    add_bias<T, float>(params, tile, row, column, s);
  } else if (p.bias_dtype != DType::none) {
    add_bias<T, typename T::Element>(params, tile, row, column, s);
  }
}

/// Word k of lane i of each four lanes becomes word i of lane k.
__device__ __forceinline__ void transpose_words(std::uint32_t (&word)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool set = (lane_id() & bit) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = bit == 1 ? 2 * pair : pair;
      std::uint32_t& first = word[low];
      std::uint32_t& second = word[low + bit];
      const std::uint32_t got = __shfl_xor_sync(0xffffffffU, set ? first : second, bit);
      (set ? first : second) = got;
    }
  }
}

/// Weights that dropout drops become 0, after the sum: lse is that without dropout. The draws for
/// eight keys of a row are four words, one for each of the lanes that share it. Each lane works out
/// those of every fourth eight keys, for all.
template <class T>
__device__ __forceinline__ void drop_weights(const ForwardParams& params, const Tile& tile, int row,
                                             int j0, Fragment (&weights)[T::kBc / 16]) {
  const host::KernelParams& common = params.common;
  const std::uint32_t threshold = common.dropout_threshold;
  const int eight = j0 / 8 + lane_id() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowPlace place(params, tile, row + 8 * r);
    const auto batch_head = tile.batch * static_cast<int>(common.problem.heads_q) + place.head;
#pragma unroll
    for (int n = 0; n < T::kBc / 8; n += 4) {
      std::uint32_t word[4] = {static_cast<std::uint32_t>(eight + n),
                               static_cast<std::uint32_t>(place.position),
                               static_cast<std::uint32_t>(batch_head),
                               static_cast<std::uint32_t>(common.operands.offset)};
      philox(common.operands.seed, word[0], word[1], word[2], word[3]);
      transpose_words(word);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::uint32_t low = (word[k] & 0xffffU) < threshold ? 0 : 0xffffU;
        const std::uint32_t high = word[k] >> 16 < threshold ? 0 : 0xffff0000U;
        weights[(n + k) / 2].x[k % 2 * 2 + r] &= low | high;
      }
    }
  }
}

}  // namespace onchip::cuda::sm90
