// SPDX-License-Identifier: Apache-2.0
// The kernels of the CPU backend, each in its own translation unit and chosen at run time by
// instruction set.
#pragma once

#include "host/cpu_plan.hpp"
#include "host/problem.hpp"

namespace onchip::cpu {

void forward_float32(const host::Problem& problem, const host::CpuPlan& plan,
                     const host::Operands& operands, void* workspace);
void forward_float64(const host::Problem& problem, const host::CpuPlan& plan,
                     const host::Operands& operands, void* workspace);
void backward_float32(const host::Problem& problem, const host::CpuPlan& plan,
                      const host::Operands& operands, void* workspace);
void backward_float64(const host::Problem& problem, const host::CpuPlan& plan,
                      const host::Operands& operands, void* workspace);

}  // namespace onchip::cpu
