// SPDX-License-Identifier: Apache-2.0
// What the Hopper forward kernel is given, for host and device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "host/kernel_params.hpp"

namespace onchip::cuda::sm90 {

struct ForwardParams {
  host::KernelParams common;
  std::int32_t safe;        // 1: every row relative to its maximum so far
  std::int32_t pack_shift;  // a tile holds 2^pack_shift heads of each position
  // (D, heads of a group, rows, KV heads, batch) and (D, rows, KV heads, batch).
  CUtensorMap q, k, v;
};

}  // namespace onchip::cuda::sm90
