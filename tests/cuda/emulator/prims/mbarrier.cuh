// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block.hpp"

namespace onchip::cuda {

inline void barrier_init(std::uint32_t barrier, int arrivals) {
  emulator::barrier_init(barrier, static_cast<unsigned>(arrivals));
}
inline void barrier_arrive(std::uint32_t barrier) { emulator::barrier_arrive(barrier); }
inline void barrier_arrive_copies(std::uint32_t barrier) {
  emulator::barrier_arrive_copies(barrier);
}
inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  emulator::barrier_wait(barrier, parity);
}

}  // namespace onchip::cuda
