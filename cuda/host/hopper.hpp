// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "common/kernel.hpp"
#include "host/kernel_params.hpp"
#include "onchip/plan.hpp"

namespace onchip::cuda {

/// Queues the Hopper forward kernel of a plan on the current device. `params.aligned` must hold.
void launch_hopper_forward(const Kernel& kernel, const PlanInfo& info,
                           const host::KernelParams& params, cudaStream_t stream);

}  // namespace onchip::cuda
