// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "block.hpp"

namespace onchip::cuda {

inline std::uint32_t shared_address(const void* pointer) {
  return emulator::shared_address(pointer);
}
inline void store_shared(std::uint32_t to, std::uint32_t word) {
  std::memcpy(emulator::shared_memory(to, 4), &word, 4);
}
inline void store_shared(std::uint32_t to, const std::uint32_t (&words)[4]) {
  std::memcpy(emulator::shared_memory(to, 16), words, 16);
}
inline uint4 load_shared_16(std::uint32_t from) {
  uint4 words;
  std::memcpy(&words, emulator::shared_memory(from, 16), 16);
  return words;
}

}  // namespace onchip::cuda
