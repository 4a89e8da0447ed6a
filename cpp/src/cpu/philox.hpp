// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) as the
// dropout generator: a function of coordinates, so that every backend draws the same mask.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace onchip::cpu {

using PhiloxWords = std::array<std::uint32_t, 4>;

inline PhiloxWords philox(PhiloxWords counter, std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

/// The four words for keys [8 * (j / 8), + 8) of query i; contract, rule 6.
inline PhiloxWords dropout_words(std::int64_t j, std::int64_t i, std::int64_t batch_head,
                                 std::uint64_t seed, std::uint64_t offset) {
  return philox({static_cast<std::uint32_t>(j / 8), static_cast<std::uint32_t>(i),
                 static_cast<std::uint32_t>(batch_head), static_cast<std::uint32_t>(offset)},
                seed);
}

/// The 16-bit lane of key j, low half first.
inline std::uint32_t dropout_lane(const PhiloxWords& words, std::int64_t j) {
  const auto lane = static_cast<std::size_t>(j % 8);
  return (words[lane / 2] >> (16 * (lane % 2))) & 0xffffU;
}

}  // namespace onchip::cpu
