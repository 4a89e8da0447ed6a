// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "block.hpp"

namespace onchip::cuda {

inline void add_4(float* to, float a, float b, float c, float d) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0) emulator::fail("a red.v4 off 16 bytes");
  to[0] += a, to[1] += b, to[2] += c, to[3] += d;
}

}  // namespace onchip::cuda
