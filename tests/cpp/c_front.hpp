// SPDX-License-Identifier: Apache-2.0
// The C ABI behind the types of the C++ API, so that one test serves both.
#pragma once

#include <cstdint>

#include "onchip/attention.hpp"

namespace c_front {

/// Plans and runs one pass through onchip.h; fails the test on a status other than success.
void call(const onchip::Attention& attention, onchip::Pass pass);

void dropout_mask(const onchip::TensorView& mask, double p, std::uint64_t seed,
                  std::uint64_t offset);

}  // namespace c_front
