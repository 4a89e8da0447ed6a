// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/kernel_params.hpp"
#include "host/plan_impl.hpp"

namespace onchip::cuda {

/// What the kernels of this launch are given. Pure: no device call.
host::KernelParams make_params(const detail::PlanImpl& plan, const host::Operands& operands,
                               void* workspace);

}  // namespace onchip::cuda
