// SPDX-License-Identifier: Apache-2.0
// Hopper forward: a finished tile from registers to memory, 16 bytes at a time.
#pragma once

#include <cstdint>

#include "prims/exp2.cuh"
#include "prims/fragment.cuh"
#include "prims/math.cuh"
#include "sm90/fwd_softmax.cuh"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

/// word i of lane q of four becomes word q of lane i.
__device__ __forceinline__ void quad_transpose(std::uint32_t (&words)[4]) {
  const unsigned lane = threadIdx.x % 4;
  const auto exchange = [&](std::uint32_t& low, std::uint32_t& high, unsigned distance) {
    const bool upper = (lane & distance) != 0;
    const std::uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? low : high, distance);
    (upper ? low : high) = got;
  };
  exchange(words[0], words[1], 1);
  exchange(words[2], words[3], 1);
  exchange(words[0], words[2], 2);
  exchange(words[1], words[3], 2);
}

__device__ __forceinline__ void store_lse(const ForwardParams& params, const Tile& tile,
                                          const RowPlace& place, float lse) {
  const host::KernelParams& common = params.common;
  if (lane_id() % 4 != 0 || !place.stored || common.operands.lse == nullptr) return;
  static_cast<float*>(common.operands.lse)[place.offset(common.problem.lse, tile)] = lse;
}

/// out and lse of a tile.
template <class T>
__device__ __forceinline__ void store_tile(const ForwardParams& params, const Tile& tile, int row,
                                           const State<T>& state) {
  using Element = typename T::Element;
  const host::KernelParams& common = params.common;
  const host::Problem& p = common.problem;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowPlace place(params, tile, row + 8 * r);
    const float l = quad_sum(state.l[r]);
    const bool sees_nothing = l == 0.0F || !place.counts;
    float factor = 1.0F / l;
    float lse = shift_of(state.base[r]) + log2f(l);  // in base 2
    if (p.has_sinks && !sees_nothing) {
      const float sink =
          kLog2e * static_cast<const float*>(common.operands.sinks)[place.head * p.sinks];
      const float top = fmaxf(lse, sink);
      const float keys = exp2_fast(lse - top);
      const float sum = keys + exp2_fast(sink - top);
      factor *= keys / sum;
      lse = top + log2f(sum);
    }
    store_lse(params, tile, place, sees_nothing ? -kInfinity : kLn2 * lse);
    auto* to = static_cast<Element*>(common.operands.out) + place.offset(p.out, tile);
#pragma unroll
    for (int group = 0; group < T::kDimV / 32; ++group) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = state.o + 16 * group + 4 * i + 2 * r;
        words[i] = sees_nothing ? 0U : pack<Element>(x[0] * factor, x[1] * factor);
      }
      quad_transpose(words);
      const int column = 32 * group + 8 * (lane_id() % 4);
      if (place.stored && column < p.dim_v)
        *reinterpret_cast<uint4*>(to + column) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

/// out and lse of a tile without keys, by one warp.
template <class T>
__device__ __forceinline__ void store_nothing(const ForwardParams& params, const Tile& tile) {
  const host::Problem& p = params.common.problem;
#pragma unroll 1
  for (int row = lane_id() / 4; row < T::kBr; row += 8) {
    const RowPlace place(params, tile, row);
    store_lse(params, tile, place, -kInfinity);
    auto* to =
        static_cast<typename T::Element*>(params.common.operands.out) + place.offset(p.out, tile);
#pragma unroll 1
    for (int column = 8 * (lane_id() % 4); place.stored && column < p.dim_v; column += 32)
      *reinterpret_cast<uint4*>(to + column) = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace onchip::cuda::sm90
