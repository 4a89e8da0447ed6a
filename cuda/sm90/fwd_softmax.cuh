// SPDX-License-Identifier: Apache-2.0
// Hopper forward: from scores to weights, in registers. Element 4 n + 2 r + e of a thread's scores
// is row r of its two and column 8 n + 2 (lane % 4) + e.
#pragma once

#include <cstdint>

#include "prims/exp2.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }

/// Running softmax of a thread's two rows. m is the maximum that weights are relative to; l and
/// `rounded` are this thread's shares of their sum, before and after rounding to 16 bits.
template <class T>
struct State {
  float o[T::kDimV / 2];
  float m[2], l[2], rounded[2];
};

/// Calls f(element, row of two, column within the block) for every score.
template <class T, class F>
__device__ __forceinline__ void for_each_score(float (&s)[T::kBc / 2], F f) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) f(s[4 * n + 2 * r + e], r, 8 * n + e);
    }
  }
}

/// Scores of keys that a row does not see become -inf; `row` is this thread's first row.
template <class T>
__device__ __forceinline__ void mask_scores(const ForwardParams& params, const Tile& tile, int row,
                                            int j0, float (&s)[T::kBc / 2]) {
  const int column = j0 + 2 * (lane_id() % 4);
  int lo[2];
  int hi[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = tile.first + ((row + 8 * r) >> params.pack_shift);
    lo[r] = tile.key_first(position) - column;
    hi[r] = tile.key_end(position) - column;
  }
  for_each_score<T>(
      s, [&](float& x, int r, int at) { x = at >= lo[r] && at < hi[r] ? x : -kInfinity; });
}

/// Softcap and ALiBi; scores leave in base 2.
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
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowPlace place(params, tile, row + 8 * r);
    const auto diagonal =
        static_cast<float>(place.position + tile.k_len - tile.q_len - j0 - 2 * (lane_id() % 4));
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
}

/// Weights exp2(c s - base) in place of a row's scores; returns their sum.
template <class T>
__device__ __forceinline__ float to_weights(float c, float base, int r, float (&s)[T::kBc / 2]) {
  float sum = 0.0F;
#pragma unroll
  for (int n = 0; n < T::kBc / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = s[4 * n + 2 * r + e];
      x = exp2_fast(fmaf(x, c, -base));
      sum += x;
    }
  }
  return sum;
}

/// A row that has seen nothing keeps m = -inf; -inf - (-inf) must not become NaN.
__device__ __forceinline__ float shift_of(float m, float c) {
  return m == -kInfinity ? 0.0F : m * c;
}

/// Takes a block of scores into (m, l) and turns them into weights exp2(c (s - m)); `alpha` is what
/// earlier sums are to be multiplied by.
template <class T>
__device__ __forceinline__ void online_softmax(float c, float (&s)[T::kBc / 2], State<T>& state,
                                               float (&alpha)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = state.m[r];
#pragma unroll
    for (int n = 0; n < T::kBc / 8; ++n)
      top = fmaxf(top, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
    top = quad_max(top);
    const float base = shift_of(top, c);
    alpha[r] = exp2_fast(state.m[r] * c - base);
    state.m[r] = top;
    state.l[r] = fmaf(state.l[r], alpha[r], to_weights<T>(c, base, r, s));
  }
}

/// The same relative to the maximum of the blocks before, whatever this one's is.
template <class T>
__device__ __forceinline__ void shifted_softmax(float c, float (&s)[T::kBc / 2], State<T>& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) state.l[r] += to_weights<T>(c, shift_of(state.m[r], c), r, s);
}

/// Weights as A operands.
template <class T>
__device__ __forceinline__ void as_operands(const float (&s)[T::kBc / 2],
                                            Fragment (&p)[T::kBc / 16]) {
#pragma unroll
  for (int n = 0; n < T::kBc / 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[n].x[i] = pack<typename T::Element>(s[8 * n + 2 * i], s[8 * n + 2 * i + 1]);
  }
}

/// Adds up the weights as the second product sees them: a later key far ahead of m has a weight
/// that is not exactly 1, and its rounding must cancel.
template <class T>
__device__ __forceinline__ void add_rounded(const Fragment (&p)[T::kBc / 16], State<T>& state) {
#pragma unroll
  for (int n = 0; n < T::kBc / 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack<typename T::Element>(p[n].x[i]);
      state.rounded[i % 2] += pair.x + pair.y;
    }
  }
}

template <class T>
__device__ __forceinline__ void rescale(const float (&alpha)[2], State<T>& state) {
#pragma unroll
  for (int i = 0; i < T::kDimV / 2; ++i) state.o[i] *= alpha[i / 2 % 2];
#pragma unroll
  for (int r = 0; r < 2; ++r) state.rounded[r] *= alpha[r];
}

/// Whether a row's weights left the range in which their sums are exact: a later key was far ahead
/// of the maximum of the first blocks.
template <class T>
__device__ __forceinline__ bool lost_range(const ForwardParams& params, const Tile& tile, int row,
                                           const State<T>& state) {
  constexpr float kLeast = 0x1p-100F;
  constexpr float kMost = 0x1p100F;
  bool lost = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float l = quad_sum(state.l[r]);
    const RowPlace place(params, tile, row + 8 * r);
    const bool sees_keys = tile.key_first(place.position) < tile.key_end(place.position);
    const bool in_range = l >= kLeast && l <= kMost;
    float zero = state.rounded[r] * 0.0F;  // NaN as soon as one output is not finite
#pragma unroll
    for (int n = 0; n < T::kDimV / 8; ++n)
      zero = fmaf(state.o[4 * n + 2 * r], 0.0F, fmaf(state.o[4 * n + 2 * r + 1], 0.0F, zero));
    lost |= place.counts && sees_keys && (!in_range || zero != 0.0F);
  }
  return lost;
}

}  // namespace onchip::cuda::sm90
