// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "common/kernel.hpp"

namespace onchip::cuda {

/// The instances of that name, in the order they run in; none: the build has no such kernel.
std::span<const Kernel> find_kernels(std::string_view name);

/// Queues `blocks` blocks of `kernel` on `stream` of the current device, `device`. `params` is its
/// one argument.
void launch(const Kernel& kernel, const void* params, std::int64_t blocks, std::int32_t device,
            cudaStream_t stream);

}  // namespace onchip::cuda
