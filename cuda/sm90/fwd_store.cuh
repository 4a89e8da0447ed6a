// SPDX-License-Identifier: Apache-2.0
// Hopper forward: a finished tile from registers to memory, 16 bytes at a time.
#pragma once

#include <cstdint>

#include "prims/exp2.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"
#include "prims/mma.cuh"
#include "prims/shared.cuh"
#include "sm90/fwd_softmax.cuh"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

/// lse of a tile's row; nothing where the caller wants none.
__device__ __forceinline__ void store_lse(const ForwardParams& params, const Tile& tile, int row,
                                          float lse) {
  auto* const to = static_cast<float*>(params.common.operands.lse);
  if (to != nullptr) to[tile.lse + row_offset(params, params.common.problem.lse, row)] = lse;
}

/// What a thread's two rows need: the factor that makes sums outputs, and whether there are none.
struct RowEnds {
  float factor[2];
  bool empty[2];
};

/// Stores lse; `row` is the thread's first row. Of the four lanes that share two rows one sees to
/// each.
template <class T>
__device__ __forceinline__ RowEnds end_rows(const ForwardParams& params, const Tile& tile, int row,
                                            const State<T>& state) {
  const host::Problem& p = params.common.problem;
  RowEnds ends;
  float l[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] = quad_sum(state.l[r]);
    ends.empty[r] = l[r] == 0.0F || !RowPlace(params, tile, row + 8 * r).counts;
    ends.factor[r] = __fdividef(T::kFull ? params.common.kept_scale : 1.0F, l[r]);
  }
  const bool second = lane_id() % 2 != 0;
  const RowPlace place(params, tile, second ? row + 8 : row);
  const bool empty = second ? ends.empty[1] : ends.empty[0];
  // In base 2.
  float lse = shift_of(second ? state.base[1] : state.base[0]) + log2_fast(second ? l[1] : l[0]);
  if (p.has_sinks) {
    const float sink = empty ? -kInfinity
                             : kLog2e * static_cast<const float*>(
                                            params.common.operands.sinks)[place.head * p.sinks];
    const float top = fmaxf(lse, sink);
    const float keys = exp2_fast(lse - top);
    const float sum = keys + exp2_fast(sink - top);
    lse = top + log2_fast(sum);
    const float share = __fdividef(keys, sum);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      ends.factor[r] *= __shfl_sync(0xffffffffU, share, (lane_id() & ~3) + r);
  }
  if (lane_id() % 4 < 2 && place.stored)
    store_lse(params, tile, second ? row + 8 : row, empty ? -kInfinity : kLn2 * lse);
  return ends;
}

/// Out and lse of a warp's 16 rows, from `row` on, by way of `staging`: 2 KiB of shared memory, 16
/// rows of 128 bytes, for 64 columns at a time, so that whole lines of memory are written. Returns
/// NaN where the tile must be computed again: an output or a sum of this thread is not finite.
template <class T>
__device__ __forceinline__ float store_tile(const ForwardParams& params, const Tile& tile, int row,
                                            std::uint32_t staging, const State<T>& state) {
  using Element = typename T::Element;
  const host::Problem& p = params.common.problem;
  const int lane = lane_id();
  const RowEnds ends = end_rows<T>(params, tile, row + lane / 4, state);
  const bool any_empty = __any_sync(0xffffffffU, ends.empty[0] || ends.empty[1]);
  auto* const out = static_cast<Element*>(params.common.operands.out) + tile.out + lane % 8 * 8;
  const int rows = tile.positions << params.pack_shift;
  Element* to[4];  // rows lane / 8, + 4...
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = out + row_offset(params, p.out, row + 4 * i + lane / 8);
  const auto chunk_at = [&](int at, int chunk) {
    return staging + static_cast<std::uint32_t>(at * 128 + ((chunk ^ (at & 7)) * 16));
  };
  std::uint32_t zero = 0;
#pragma unroll
  for (int panel = 0; panel < T::kPanelsV; ++panel) {
    __syncwarp();  // until every lane has read what was there
#pragma unroll
    for (int n = 0; n < 4 && 64 * panel + 16 * n < T::kDimV; ++n) {
      Fragment words;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = state.o + 32 * panel + 8 * n + 2 * i;
        const int r = i % 2;
        words.x[i] = pack<Element>(x[0] * ends.factor[r], x[1] * ends.factor[r]);
        if (any_empty && ends.empty[r]) words.x[i] = 0;
        zero = add_zero_times<Element>(words.x[i], zero);
      }
      store_matrix(chunk_at(lane % 16, 2 * n + lane / 16), words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + 4 * i + lane / 8 >= rows || 64 * panel + lane % 8 * 8 >= p.dim_v) continue;
      *reinterpret_cast<uint4*>(to[i] + 64 * panel) =
          load_shared_16(chunk_at(4 * i + lane / 8, lane % 8));
    }
  }
  const float2 sums = unpack<Element>(zero);
  float l = 0.0F;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // A base that still is -inf, of a row that counts: weights were relative to 0, and may be too
    // small for their type, or all be 0.
    if (state.base[r] == -kInfinity) l = kInfinity;
    if (!ends.empty[r]) l += state.l[r];
  }
  return fmaf(l, 0.0F, sums.x + sums.y);
}

/// out and lse of a tile without keys, by one warp.
template <class T>
__device__ __forceinline__ void store_nothing(const ForwardParams& params, Tile tile) {
  const host::Problem& p = params.common.problem;
  tile.out = first_row(p.out, tile);
  tile.lse = first_row(p.lse, tile);
#pragma unroll 1
  for (int row = lane_id() / 4; row < T::kBr; row += 8) {
    const bool stored = row >> params.pack_shift < tile.positions;
    if (stored && lane_id() % 4 == 0) store_lse(params, tile, row, -kInfinity);
    auto* const to = static_cast<typename T::Element*>(params.common.operands.out) + tile.out +
                     row_offset(params, p.out, row);
#pragma unroll 1
    for (int column = 8 * (lane_id() % 4); stored && column < p.dim_v; column += 32)
      *reinterpret_cast<uint4*>(to + column) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace onchip::cuda::sm90
