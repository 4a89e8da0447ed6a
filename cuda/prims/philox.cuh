// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al. 2011).
#pragma once

#include <cstdint>

namespace onchip::cuda {

/// The four words of a counter become four random ones. By reference, since a kernel that is short
/// of registers spills more with a struct of four.
__device__ __forceinline__ void philox(std::uint64_t seed, std::uint32_t& c0, std::uint32_t& c1,
                                       std::uint32_t& c2, std::uint32_t& c3) {
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53U, c0);
    const std::uint32_t high1 = __umulhi(0xCD9E8D57U, c2);
    const std::uint32_t low0 = 0xD2511F53U * c0;
    const std::uint32_t low1 = 0xCD9E8D57U * c2;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

}  // namespace onchip::cuda
