// SPDX-License-Identifier: Apache-2.0
// What a GPU kernel is given: the normalised problem, the pointers, and what the host decided.
#pragma once

#include <bit>
#include <cstdint>

#include "host/problem.hpp"

namespace onchip::host {

/// Division by a number that only the host knows, as a product: n / by for n < 2^31 is
/// (n * multiplier) >> shift, where multiplier is 2^shift / by rounded up and 2^(shift - 31) is at
/// least `by`, so that what the rounding adds stays below 1 / by.
struct Divisor {
  std::uint32_t by = 1, multiplier = 1U << 31;
  std::int32_t shift = 31;

  constexpr Divisor() = default;
  constexpr explicit Divisor(std::int64_t divisor)
      : by(divisor > 1 ? static_cast<std::uint32_t>(divisor) : 1),
        shift(31 + std::bit_width(by - 1)) {
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + by - 1) / by);
  }
  [[nodiscard]] constexpr std::uint32_t quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> shift);
  }
};

/// What kernels divide the numbers of blocks and tiles by.
struct Divisors {
  Divisor section_tiles, section, heads_kv, group;
};

struct KernelParams {
  Problem problem;
  Operands operands;

  std::int64_t blocks = 0;            // of the grid
  std::int64_t tiles_per_head = 0;    // query (or key) tiles of one head, at most
  std::int64_t heads_in_section = 1;  // heads whose K and V share the L2 cache: scheduled together
  Divisors divisors;                  // set with them
  std::int64_t num_splits = 1, split_size = 0;
  std::uint32_t dropout_threshold = 0;
  float kept_scale = 1.0F;  // 1 / (1 - threshold / 65536)
  bool aligned = false;     // every row starts at a multiple of 16 bytes
  bool full = false;        // an option that touches scores one by one

  std::int64_t* first_tile = nullptr;  // packed: [B + 1] tiles of one head before sequence b
  // Hopper forward: tiles handed out so far; null: block b takes tiles b, b + grid...
  std::uint32_t* next_tile = nullptr;
  float *partial_out = nullptr, *partial_lse = nullptr;  // splits: [splits][rows * Hq][Dv or 1]
  float *dq_sum = nullptr, *delta = nullptr, *lse2 = nullptr;  // backward
  float* lse_rest = nullptr;  // float32: what rounding took from each partial_lse, or lse2

  void schedule(std::int64_t tiles, std::int64_t section) {
    tiles_per_head = tiles;
    heads_in_section = section;
    divisors = {Divisor(section * tiles), Divisor(section), Divisor(problem.heads_kv),
                Divisor(problem.heads_q / problem.heads_kv)};
  }
};

}  // namespace onchip::host
