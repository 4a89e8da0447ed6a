// SPDX-License-Identifier: Apache-2.0
// What a GPU kernel is given: the normalised problem, the pointers, and what the host decided.
#pragma once

#include <cstdint>

#include "host/problem.hpp"

namespace onchip::host {

struct KernelParams {
  Problem problem;
  Operands operands;

  std::int64_t blocks = 0;            // of the grid
  std::int64_t tiles_per_head = 0;    // query (or key) tiles of one head; packed: unused
  std::int64_t heads_in_section = 1;  // heads whose K and V share the L2 cache: scheduled together
  std::int64_t num_splits = 1, split_size = 0;
  std::uint32_t dropout_threshold = 0;
  float kept_scale = 1.0F;  // 1 / (1 - threshold / 65536)
  bool aligned = false;     // every row starts at a multiple of 16 bytes
  bool full = false;        // an option that touches scores one by one

  std::int64_t* first_tile = nullptr;  // packed: [B + 1] tiles of one head before sequence b
  float *partial_out = nullptr, *partial_lse = nullptr;  // splits: [splits][rows * Hq][Dv or 1]
  float *dq_sum = nullptr, *delta = nullptr, *lse2 = nullptr;  // backward
};

}  // namespace onchip::host
