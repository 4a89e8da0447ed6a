// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block.hpp"

namespace onchip::cuda {

inline void copy_16(std::uint32_t to, const void* from, bool valid) {
  emulator::copy_later(to, from, 16, valid);
}
inline void copy_4(std::uint32_t to, const void* from, bool valid) {
  emulator::copy_later(to, from, 4, valid);
}
inline void copy_commit() { emulator::commit_copies(); }
template <int kPending>
inline void copy_wait() {
  emulator::wait_copies(kPending);
}

}  // namespace onchip::cuda
