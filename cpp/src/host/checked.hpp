// SPDX-License-Identifier: Apache-2.0
// Sizes in 64 bits that say so when they do not fit.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "onchip/status.hpp"

namespace onchip::host {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

[[noreturn]] inline void too_large() {
  throw Error(ErrorCode::unsupported,
              "workspace: the problem needs 2^63 bytes or more; split the batch");
}

inline std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) too_large();
  }
  return result;
}

inline std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) too_large();
  return result;
}

/// `bytes` in whole units of `alignment`.
inline std::int64_t aligned_bytes(std::initializer_list<std::int64_t> factors,
                                  std::int64_t alignment) {
  return product({ceil_div(product(factors), alignment), alignment});
}

}  // namespace onchip::host
