// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/backend.hpp"

namespace onchip::cuda {

const host::Backend& cuda_backend();

}  // namespace onchip::cuda
