// SPDX-License-Identifier: Apache-2.0
// From a block's number to a sequence, a KV head and the rank of a tile among theirs: the same for
// tiles of query rows and of keys.
#pragma once

#include <cstdint>

#include "host/kernel_params.hpp"
#include "host/sequence.hpp"

namespace onchip::cuda {

/// The last of `count` sequences that begins at `number` or before; `first` never falls.
template <class Integer>
__device__ inline int find_sequence(const Integer* first, std::int64_t stride, std::int64_t count,
                                    std::int64_t number) {
  std::int64_t low = 0;
  std::int64_t high = count;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (first[middle * stride] <= number ? low : high) = middle;
  }
  return static_cast<int>(low);
}

/// Finds the tile of block `number`: fills work.sequence and work.kv_head and calls `take` with its
/// rank among their tiles; not at all where there is none. Dense: sections of heads that share the
/// L2 cache; within one, rank after rank. Packed: the tiles of a head are those that first_tile
/// counts. The grid has fewer than 2^31 blocks.
/// `take` is called in both branches: with one call behind them the forward kernel spills.
template <class Work, class Take>
__device__ __forceinline__ void find_tile(const host::KernelParams& params, unsigned number,
                                          Work& work, Take take) {
  const host::Problem& p = params.problem;
  const auto tiles = static_cast<unsigned>(params.tiles_per_head);
  if (p.packed) {
    work.kv_head = static_cast<int>(number / tiles);
    number %= tiles;
    if (number >= params.first_tile[p.batch]) return;
    const int b = find_sequence(params.first_tile, 1, p.batch, number);
    work.sequence = host::sequence_at(p, params.operands, b);
    take(static_cast<int>(number - params.first_tile[b]));
    return;
  }
  const host::Divisors& divisors = params.divisors;
  const unsigned section = divisors.section.by;
  const unsigned first_head = divisors.section_tiles.quotient(number) * section;
  const unsigned within = number - first_head * tiles;
  const unsigned heads = static_cast<unsigned>(p.batch) * divisors.heads_kv.by;
  const unsigned count = min(section, heads - first_head);  // the last section may be short
  const unsigned rank = count == section ? divisors.section.quotient(within) : within / count;
  const unsigned head = first_head + within - rank * count;
  const unsigned batch = divisors.heads_kv.quotient(head);
  work.kv_head = static_cast<int>(head - batch * divisors.heads_kv.by);
  work.sequence = host::sequence_at(p, params.operands, batch);
  take(static_cast<int>(rank));
}

}  // namespace onchip::cuda
