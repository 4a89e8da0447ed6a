// SPDX-License-Identifier: Apache-2.0
// From a block's number to the tile of keys it owns in the backward pass.
#pragma once

#include "common/tile_number.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"

namespace onchip::cuda {

/// A tile of keys of one KV head: rows [first, first + rows) of the sequence.
struct KeyWork {
  host::Sequence sequence;
  int kv_head = 0;
  int first = 0, rows = 0;  // rows 0: nothing to do
};

/// Early keys first, which most rows see under a causal mask.
__device__ inline KeyWork find_key_work(const host::KernelParams& params, int tile_k) {
  KeyWork work;
  find_tile(params, blockIdx.x, work, [&](int rank) {
    work.first = rank * tile_k;
    work.rows = min(tile_k, static_cast<int>(work.sequence.k_rows) - work.first);
  });
  return work;
}

}  // namespace onchip::cuda
