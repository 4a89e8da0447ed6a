// SPDX-License-Identifier: Apache-2.0
// What the Hopper forward kernel is given, for host and device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "host/kernel_params.hpp"

namespace onchip::cuda::sm90 {

/// Head of the workspace of one call: all zero when the first kernel starts. Behind it lie one bit
/// for each tile, and then the numbers of the tiles whose weights left their range: those a second
/// launch computes again with the safe softmax.
struct Ledger {
  std::uint32_t lost;     // tiles in the list
  std::uint32_t next[2];  // tile counter of each launch
  std::uint32_t unused;
};

struct ForwardParams {
  host::KernelParams common;
  Ledger* ledger;
  std::int32_t again;       // 1: only the lost tiles
  std::int32_t pack_shift;  // a tile holds 2^pack_shift heads of each position
  // (D, heads of a group, rows, KV heads, batch) and (D, rows, KV heads, batch).
  CUtensorMap q, k, v;
};

}  // namespace onchip::cuda::sm90
