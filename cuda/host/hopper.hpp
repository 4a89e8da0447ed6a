// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "common/kernel.hpp"
#include "host/kernel_params.hpp"
#include "onchip/plan.hpp"

namespace onchip::cuda {

/// Queues the Hopper forward kernel of a plan on the current device. Of two kernels, the first has
/// the optimistic softmax and the second computes again the tiles that it lost. `params.aligned`
/// must hold.
void launch_hopper_forward(std::span<const Kernel> kernels, const PlanInfo& info,
                           const host::KernelParams& params, cudaStream_t stream);

}  // namespace onchip::cuda
