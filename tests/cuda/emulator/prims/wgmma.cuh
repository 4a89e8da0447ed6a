// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hopper.hpp"
#include "prims/fragment.cuh"
#include "prims/mma.cuh"

namespace onchip::cuda {

inline void wgmma_fence() { emulator::fence_products(); }
inline void wgmma_commit() { emulator::commit_products(); }
template <int kPending>
void wgmma_wait() {
  emulator::wait_products(kPending);
}

inline int accumulator_bits(float x) { return __float_as_int(x); }

/// Operands as hardware takes them: hopper.cpp reads their bits.
inline std::uint64_t wgmma_operand(std::uint32_t address, std::uint32_t leading) {
  return (address >> 4 & 0x3fffU) | std::uint64_t{leading >> 4} << 16 |
         std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}
inline std::uint64_t wgmma_step(std::uint64_t operand, std::uint32_t bytes) {
  return operand >> 32 << 32 | (static_cast<std::uint32_t>(operand) + (bytes >> 4));
}

template <class Element, int kCount>
void wgmma_ss(float (&c)[kCount], std::uint64_t a, std::uint64_t b, int accumulate) {
  emulator::multiply_later({floats<Element>().data(), 2 * kCount, false},
                           {c, nullptr, a, b, accumulate != 0});
}
template <class Element, bool kAlongN, int kCount>
void wgmma_rs(float (&c)[kCount], const Fragment& a, std::uint64_t b, int accumulate) {
  emulator::multiply_later({floats<Element>().data(), 2 * kCount, kAlongN},
                           {c, a.x, 0, b, accumulate != 0});
}

}  // namespace onchip::cuda
