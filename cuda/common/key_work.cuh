// SPDX-License-Identifier: Apache-2.0
// From a block's number to the tile of keys it owns in the backward pass.
#pragma once

#include <cstdint>

#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"

namespace onchip::cuda {

/// A tile of keys of one KV head: rows [first, first + rows) of the sequence.
struct KeyWork {
  host::Sequence sequence;
  int kv_head = 0;
  int first = 0, rows = 0;  // rows 0: nothing to do
};

/// Tiles in the order of sections of heads that share the L2 cache; within one, early keys first,
/// which most rows see under a causal mask. Packed: first_tile counts the key tiles of a head.
__device__ inline KeyWork find_key_work(const host::KernelParams& params, int tile_k) {
  const host::Problem& p = params.problem;
  KeyWork work;
  unsigned number = blockIdx.x;
  const auto tiles = static_cast<unsigned>(params.tiles_per_head);
  const auto heads_kv = static_cast<unsigned>(p.heads_kv);
  int tile = 0;
  if (p.packed) {
    work.kv_head = static_cast<int>(number / tiles);
    number %= tiles;
    if (number >= params.first_tile[p.batch]) return work;
    const int b = find_sequence(params.first_tile, p.batch, number);
    work.sequence = host::sequence_at(p, params.operands, b);
    tile = static_cast<int>(number - params.first_tile[b]);
  } else {
    const unsigned heads = static_cast<unsigned>(p.batch) * heads_kv;
    const auto section = static_cast<unsigned>(params.heads_in_section);
    const unsigned first_head = number / (section * tiles) * section;
    const unsigned within = number - first_head * tiles;
    const unsigned count = min(section, heads - first_head);
    const unsigned head = first_head + within % count;
    work.kv_head = static_cast<int>(head % heads_kv);
    work.sequence = host::sequence_at(p, params.operands, head / heads_kv);
    tile = static_cast<int>(within / count);
  }
  work.first = tile * tile_k;
  work.rows = min(tile_k, static_cast<int>(work.sequence.k_rows) - work.first);
  return work;
}

}  // namespace onchip::cuda
