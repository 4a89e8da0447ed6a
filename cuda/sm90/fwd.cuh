// SPDX-License-Identifier: Apache-2.0
// Forward pass on Hopper: one warp hands out tiles, one copies them by TMA, and warpgroups
// compute 64 query rows each by wgmma. The product of the next scores runs under the softmax of the
// last ones, P feeds the second product from registers, and where Q is there early the first
// product of the next tile runs under the stores of this one. Blocks of keys go from the last to
// the first. docs/hopper.md goes through it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "prims/mbarrier.cuh"
#include "prims/mma.cuh"
#include "prims/shared.cuh"
#include "prims/tma.cuh"
#include "prims/wgmma.cuh"
#include "sm90/fwd_block.cuh"
#include "sm90/fwd_feed.cuh"
#include "sm90/fwd_options.cuh"
#include "sm90/fwd_params.hpp"
#include "sm90/fwd_softmax.cuh"
#include "sm90/fwd_spans.hpp"
#include "sm90/fwd_store.cuh"
#include "sm90/fwd_work.cuh"

namespace onchip::cuda::sm90 {

/// Q of this warpgroup as A operands.
template <class T>
struct QueryOperands {
  Fragment x[T::kQRegisters ? T::kDim / 16 : 1];

  __device__ __forceinline__ void load(std::uint32_t q) {
    const int row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane_id() % 16;
#pragma unroll
    for (int step = 0; step < T::kDim / 16; ++step) {
      const int chunk = step % 4 * 2 + lane_id() / 16;
      x[step] = load_matrix(q + step / 4 * (T::kBr * 128) + row * 128 + ((chunk ^ (row & 7)) * 16));
    }
  }
};

/// s = Q . K^T of this warpgroup.
template <class T>
__device__ __forceinline__ void issue_qk(const QueryOperands<T>& operands, std::uint32_t q,
                                         std::uint32_t k, float (&s)[T::kBc / 2]) {
  const std::uint64_t queries = wgmma_operand(q, 16);
  const std::uint64_t keys = wgmma_operand(k, 16);
#pragma unroll
  for (int step = 0; step < T::kDim / 16; ++step) {
    const std::uint64_t b = wgmma_step(keys, step / 4 * (T::kBc * 128) + step % 4 * 32);
    if constexpr (T::kQRegisters) {
      wgmma_rs<typename T::Element, false>(s, operands.x[step], b, step > 0);
    } else {
      const std::uint64_t a = wgmma_step(queries, step / 4 * (T::kBr * 128) + step % 4 * 32);
      wgmma_ss<typename T::Element>(s, a, b, step > 0);
    }
  }
  wgmma_commit();
}

/// o += P . V of this warpgroup.
template <class T>
__device__ __forceinline__ void issue_pv(const Fragment (&p)[T::kBc / 16], std::uint32_t v,
                                         float (&o)[T::kDimV / 2]) {
  const std::uint64_t values = wgmma_operand(v, T::kBc * 128);
#pragma unroll
  for (int step = 0; step < T::kBc / 16; ++step)
    wgmma_rs<typename T::Element, true>(o, p[step], wgmma_step(values, step * 2048), 1);
  wgmma_commit();
}

/// Zeros rows [first, kBc) of a stage of V, by each warpgroup for itself: their weights are 0, but
/// memory behind a sequence may hold NaN.
template <class T>
__device__ __forceinline__ void clear_values(int group, std::uint32_t v, int first) {
#pragma unroll 1
  for (int at = first * 8 + static_cast<int>(threadIdx.x) % 128; at < T::kBc * 8; at += 128) {
#pragma unroll
    for (int panel = 0; panel < T::kPanelsV; ++panel)
      store_zeros(v + panel * (T::kBc * 128) + at * 16);
  }
  async_fence();
  named_barrier_wait<128>(8 + group);
}

/// Turns of the computing warpgroups at the tensor cores: each waits for the one before it.
template <class T>
struct Turns {
  int group;
  __device__ __forceinline__ void start() const {
    if (T::kPingpong && group == T::kGroups - 1) pass();
  }
  __device__ __forceinline__ void wait() const {
    if (T::kPingpong) named_barrier_wait<256>(1 + group);
  }
  __device__ __forceinline__ void pass() const {
    if (T::kPingpong) named_barrier_arrive<256>(1 + (group + 1) % T::kGroups);
  }
};

/// What is done with a block's scores: kAny, whatever its number asks for; else one of the two
/// softmaxes, and no mask, as every row sees all of its keys. A block is not online after one that
/// is not: the maximum of a row whose scores were all -inf must not move any more.
enum class Kind { kAny, kShifted, kOnline };
template <Kind kKind>
using KindConstant = std::integral_constant<Kind, kKind>;

/// A computing warpgroup. No branch may stand between the wgmma of one turn, nor around one: ptxas
/// would serialise them (C7519, C7520), and did hang.
template <class T>
__device__ __forceinline__ void compute_tiles(const ForwardParams& params, Barriers<T>& barriers,
                                              const Tiles& shared) {
  const host::Problem& p = params.common.problem;
  const float c = T::kFull ? 1.0F : static_cast<float>(p.scale) * kLog2e;
  const bool clears_tail = p.has_cu_seqlens_k || p.has_seqused_k;  // else TMA has filled in zeros
  const int group = group_id();
  const Turns<T> turns{group};
  const int warp_row = group * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  const int row = warp_row + lane_id() / 4;
  std::uint32_t q;  // this warpgroup's rows
  Ring<T::kTilesAhead> tiles;
  Ring<T::kQStages> queries;
  Ring<T::kStages> keys;
  Ring<T::kStagesV> values;
  const auto key_tile = [&] { return shared.k + keys.at * T::kKBytes; };
  const auto value_tile = [&] { return shared.v + values.at * T::kVBytes; };
  const auto release_keys = [&] {
    warp_arrive(barriers.k_empty[keys.at]);
    keys.step();
  };
  const auto release_values = [&] {
    warp_arrive(barriers.v_empty[values.at]);
    values.step();
  };
  // Q of the tile before the next may be written over. `now` and the lane make one predicate: with
  // a branch of its own, ptxas keeps the rings out of the uniform registers.
  const auto release_queries = [&](bool now) {
    std::uint64_t& empty =
        barriers.q_empty[group][T::kQRegisters ? 0 : queries.at ^ (T::kQStages - 1)];
    if (lane_id() == 0 && now) barrier_arrive(shared_address(&empty));
  };
  QueryOperands<T> operands;
  const auto take_queries = [&] {
    const Work& work = barriers.work[tiles.at];
    const int unseen = work.end_block - 1 - barriers.blocks[tiles.at][group].last;
    skip(unseen, keys, barriers.k_full, barriers.k_empty, [] {});
    queries.wait_full(barriers.q_full[group]);
    q = shared.q + queries.at * T::kQBytes + group * (64 * 128);
    queries.step();
    if constexpr (T::kQRegisters) {
      operands.load(q);
      __syncwarp();  // until every lane has read
      release_queries(true);
    }
  };
  // 16 rows of 128 bytes of this warp's.
  const std::uint32_t staging = shared.staging + static_cast<std::uint32_t>(warp_row) * 128;
  float s[T::kBc / 2];
  Fragment weights[T::kBc / 16];
  State<T> state;
  typename T::Timeline time(group);
  turns.start();
  while (true) {
    time.mark(Span::kWork);
    tiles.wait_full(barriers.tile_full);
    const int number = barriers.work[tiles.at].number;
    if (number == Work::kEnd) return;
    if (number == Work::kPause) {
      barrier_arrive(shared_address(barriers.tile_empty + tiles.at));
      tiles.step();
      continue;
    }
    time.mark(Span::kQueries);
    take_queries();
    time.mark(Span::kKeys);
    keys.wait_full(barriers.k_full);
    time.mark(Span::kTurn);
    turns.wait();
    time.mark(Span::kIssue);
    wgmma_fence();
    issue_qk<T>(operands, q, key_tile(), s);
    turns.pass();
    bool more = false;
    do {
      const Work& work = barriers.work[tiles.at];
      const Tile& tile = work.tile;
      const int first = work.first_block;
      const Blocks blocks = barriers.blocks[tiles.at][group];
      const int last = blocks.last;
      const auto round_weights = [&](int block) {
        as_operands<T>(s, weights);
        if constexpr (T::kFull) {
          if (params.common.dropout_threshold > 0)
            drop_weights<T>(params, tile, row, block * T::kBc, weights);
        }
      };
      const auto prepare_scores = [&](int block, bool hides) {
        if constexpr (T::kFull) apply_options<T>(params, tile, row, block * T::kBc, s);
        if (hides) mask_scores<T>(params, tile, row, block * T::kBc, s);
      };
      float alpha[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // Weights of a row that does not count are 0 or NaN, so that it has no vote in a move.
        state.base[r] = RowPlace(params, tile, row + 8 * r).counts ? -kInfinity : kInfinity;
        state.l[r] = 0.0F;
      }
      time.mark(Span::kScores);
      wgmma_wait<0>();
      release_keys();
      if (!T::kQRegisters) release_queries(last == first);
      time.mark(Span::kMask);
      prepare_scores(last, blocks.hides(last));
      time.mark(Span::kOnline);
      online_softmax<T>(c, s, state, alpha);
      time.mark(Span::kPack);
      round_weights(last);
      time.mark(Span::kPassed);
      // Others compute these blocks: their turns come and go.
      skip(work.end_block - 1 - last, values, barriers.v_full, barriers.v_empty, [&] {
        turns.wait();
        turns.pass();
      });
      const int tail = tile.k_len - last * T::kBc;
      if (clears_tail && tail < T::kBc) {
        values.wait_full(barriers.v_full);
        clear_values<T>(group, value_tile(), tail);
      }
#pragma unroll
      for (float& x : state.o) x = 0.0F;
      const auto step = [&](auto kind, int block) {
        constexpr Kind kKind = decltype(kind)::value;
        const bool hides = kKind == Kind::kAny && blocks.hides(block);
        const bool online =
            kKind == Kind::kOnline || (kKind == Kind::kAny && block >= blocks.shifted_end);
        time.mark(Span::kKeys);
        keys.wait_full(barriers.k_full);
        values.wait_full(barriers.v_full);
        time.mark(Span::kTurn);
        turns.wait();
        time.mark(Span::kIssue);
        wgmma_fence();
        issue_qk<T>(operands, q, key_tile(), s);
        issue_pv<T>(weights, value_tile(), state.o);
        turns.pass();
        time.mark(Span::kScores);
        wgmma_wait<1>();
        release_keys();
        if (!T::kQRegisters) release_queries(block == first);
        time.mark(Span::kMask);
        prepare_scores(block, hides);
        time.mark(online ? Span::kOnline : Span::kShifted);
        const bool moved =
            online ? online_softmax<T>(c, s, state, alpha) : shifted_softmax<T>(c, s, state, alpha);
        time.mark(Span::kValues);
        wgmma_wait<0>();
        release_values();
        time.mark(Span::kRescale);
        if (moved) rescale<T>(alpha, state);
        time.mark(Span::kPack);
        round_weights(block);
      };
      // Loops of their own for blocks that every row sees, whose instructions lie together. Options
      // have too many for that.
      const int open_first = max(first, blocks.open_first);
      const int online_first = max(open_first, blocks.shifted_end);
      const int shifted_end = min(blocks.open_end, blocks.shifted_end);
      int block = last - 1;
#pragma unroll 1
      while (block >= first) {
        if constexpr (!T::kFull) {
#pragma unroll 1
          for (; block >= open_first && block < shifted_end; --block)
            step(KindConstant<Kind::kShifted>{}, block);
#pragma unroll 1
          for (; block >= online_first && block < blocks.open_end; --block)
            step(KindConstant<Kind::kOnline>{}, block);
        }
        if (block >= first) step(KindConstant<Kind::kAny>{}, block--);
      }
      const int at = tiles.at;
      tiles.step();
      if constexpr (T::kNextUnderStore) {
        time.mark(Span::kWork);
        tiles.wait_full(barriers.tile_full);
        more = uniform(barriers.work[tiles.at].number) >= 0;
        time.mark(Span::kQueries);
        if (more) {
          take_queries();
          keys.wait_full(barriers.k_full);
        }
      }
      time.mark(Span::kKeys);
      values.wait_full(barriers.v_full);
      time.mark(Span::kTurn);
      turns.wait();
      time.mark(Span::kIssue);
      wgmma_fence();
      issue_pv<T>(weights, value_tile(), state.o);
      // Of no use where no tile follows, but a branch around it is not allowed.
      if constexpr (T::kNextUnderStore) issue_qk<T>(operands, q, key_tile(), s);
      turns.pass();
      time.mark(Span::kValues);
      wgmma_wait<T::kNextUnderStore ? 1 : 0>();
      release_values();
      time.mark(Span::kStore);
      const float zero = store_tile<T>(params, tile, warp_row, staging, state);
      time.mark(Span::kTest);
      const bool lost = blocks.shifted_end > first && zero != 0.0F;
      if (__any_sync(0xffffffffU, lost) && lane_id() == 0) atomicOr(&barriers.lost[at], 1U);
      time.mark(Span::kRelease);
      barrier_arrive(shared_address(barriers.tile_empty + at));
    } while (more);
    if (T::kNextUnderStore) wgmma_wait<0>();
  }
}

template <class T>
__global__ __launch_bounds__(T::kThreads,
                             1) void forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ char dynamic[];
  __shared__ Barriers<T> barriers;
  Tiles shared;
  shared.q = (shared_address(dynamic) + 1023U) & ~1023U;
  shared.k = shared.q + T::kQStages * T::kQBytes;
  shared.v = shared.k + T::kStages * T::kKBytes;
  shared.staging = shared.v + T::kStagesV * T::kVBytes;
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&params.k, &params.q, &params.v}) tma_prefetch(*map);
    barriers.init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<T::kOtherRegisters>();
    if (threadIdx.x / 32 == 0) Copier<T>(params, barriers, shared).run();
    if (threadIdx.x / 32 == 1) schedule_tiles<T>(params, barriers);
  } else {
    take_registers<T::kRegisters>();
    compute_tiles<T>(params, barriers, shared);
  }
}

}  // namespace onchip::cuda::sm90
