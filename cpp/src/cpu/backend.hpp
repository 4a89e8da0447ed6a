// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/backend.hpp"

namespace onchip::cpu {

/// The backend for host memory.
const host::Backend& cpu_backend();

}  // namespace onchip::cpu
