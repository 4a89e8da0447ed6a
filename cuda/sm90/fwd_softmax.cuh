// SPDX-License-Identifier: Apache-2.0
// Hopper forward: from scores to weights, in registers. Element 4 n + 2 r + e of a thread's scores
// is row r of its two and column 8 n + 2 (lane % 4) + e.
#pragma once

#include <cstdint>

#include "prims/exp2.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"
#include "prims/wgmma.cuh"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }

/// Running softmax of a thread's two rows: weights are exp2(c s - base), l is this thread's share
/// of their sum.
template <class T>
struct State {
  float o[T::kDimV / 2];
  float base[2], l[2];
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

/// Of a row's scores in a thread, in columns 0, 1, 8, 9, 16..., those in columns before `end`.
__device__ __forceinline__ int scores_before(int end) { return 2 * (end >> 3) + min(end & 7, 2); }

/// Bits [first, end) of a word, from 0 to 32.
__device__ __forceinline__ std::uint32_t bit_range(int first, int end) {
  const auto below = [](int n) { return n >= 32 ? ~0U : (1U << n) - 1; };
  return below(end) & ~below(first);
}

/// Scores of keys that a row does not see become -inf; `row` is this thread's first row.
template <class T>
__device__ __forceinline__ void mask_scores(const ForwardParams& params, const Tile& tile, int row,
                                            int j0, float (&s)[T::kBc / 2]) {
  const int column = j0 + 2 * (lane_id() % 4);
  constexpr int kScores = T::kBc / 4;  // of a row
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = tile.first + ((row + 8 * r) >> params.pack_shift);
    const auto place = [&](int key) { return scores_before(max(0, min(key - column, T::kBc))); };
    const int first = place(tile.key_first(position));
    const int end = place(tile.key_end(position));
#pragma unroll
    for (int word = 0; word < (kScores + 31) / 32; ++word) {
      const auto within = [&](int at) { return max(0, min(at - 32 * word, 32)); };
      const std::uint32_t seen = bit_range(within(first), within(end));
#pragma unroll
      for (int bit = 0; bit < 32 && 32 * word + bit < kScores; ++bit) {
        const int k = 32 * word + bit;
        float& x = s[4 * (k / 2) + 2 * r + k % 2];
        x = (seen & (1U << bit)) != 0 ? x : -kInfinity;
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

/// A row that has seen nothing keeps base = -inf; -inf - (-inf) must not become NaN.
__device__ __forceinline__ float shift_of(float base) { return base == -kInfinity ? 0.0F : base; }

/// A row's greatest score in this thread.
template <class T>
__device__ __forceinline__ float top_score(int r, const float (&s)[T::kBc / 2]) {
  float top = -kInfinity;
#pragma unroll
  for (int n = 0; n < T::kBc / 8; ++n)
    top = fmaxf(top, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
  return top;
}

/// The same, but at least 0: from there on floats are in the order of their bits, and of integers
/// one instruction compares three.
template <class T>
__device__ __forceinline__ float top_score_above_zero(int r, const float (&s)[T::kBc / 2]) {
  int top = 0;
#pragma unroll
  for (int n = 0; n < T::kBc / 8; ++n)
    top = __vimax3_s32(top, accumulator_bits(s[4 * n + 2 * r]),
                       accumulator_bits(s[4 * n + 2 * r + 1]));
  return __int_as_float(top);
}

/// Takes a block of scores into (base, l), base being the maximum so far, and turns them into
/// weights; `alpha` is what earlier sums are to be multiplied by. Returns whether a row's base may
/// have moved.
template <class T>
__device__ __forceinline__ bool online_softmax(float c, float (&s)[T::kBc / 2], State<T>& state,
                                               float (&alpha)[2]) {
  float top[2];
  if (__all_sync(0xffffffffU, state.base[0] >= 0.0F && state.base[1] >= 0.0F)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = top_score_above_zero<T>(r, s);
  } else {
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = top_score<T>(r, s);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float base = fmaxf(state.base[r], quad_max(top[r]) * c);
    alpha[r] = exp2_fast(state.base[r] - shift_of(base));
    state.base[r] = base;
    state.l[r] = fmaf(state.l[r], alpha[r], to_weights<T>(c, shift_of(base), r, s));
  }
  // Worth asking where O is large.
  return T::kDimV <= 128 || __any_sync(0xffffffffU, alpha[0] != 1.0F || alpha[1] != 1.0F);
}

/// Weights of a block relative to the base of those before, whatever this block's maximum is.
/// Returns whether a row's base moved after all: where one weight may have most of its row's sum it
/// must be exactly 1, as the maximum's is in the online softmax, or its rounding to 16 bits would
/// not cancel; nor may weights leave their range. alpha: as above.
template <class T>
__device__ __forceinline__ bool shifted_softmax(float c, float (&s)[T::kBc / 2], State<T>& state,
                                                float (&alpha)[2]) {
  constexpr float kShare = 8.0F;  // of the sums so far
  constexpr float kMost = 256.0F;
  constexpr float kReach = 0x1p120F;  // farther, alpha would be 0, and hide what it multiplies
  float sum[2];
  bool far = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = to_weights<T>(c, shift_of(state.base[r]), r, s);
    far = far || sum[r] > fminf(fmaxf(kShare * state.l[r], 1.0F), kMost);
  }
  const bool moves = __any_sync(0xffffffffU, far);
  if (moves) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = 1.0F;
#pragma unroll
      for (int n = 0; n < T::kBc / 8; ++n)
        top = fmaxf(top, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
      top = quad_max(top);
      const float old = shift_of(state.base[r]);
      const float base = old + log2f(top);
      alpha[r] = top < kReach ? exp2_fast(old - base) : kInfinity;  // which loses the row
      if (top > 1.0F) state.base[r] = base;                         // else -inf stays
      state.l[r] *= alpha[r];
      sum[r] *= alpha[r];
#pragma unroll
      for (int n = 0; n < T::kBc / 8; ++n) {
        s[4 * n + 2 * r] *= alpha[r];
        s[4 * n + 2 * r + 1] *= alpha[r];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) state.l[r] += sum[r];
  return moves;
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

template <class T>
__device__ __forceinline__ void rescale(const float (&alpha)[2], State<T>& state) {
#pragma unroll
  for (int i = 0; i < T::kDimV / 2; ++i) state.o[i] *= alpha[i / 2 % 2];
}

}  // namespace onchip::cuda::sm90
