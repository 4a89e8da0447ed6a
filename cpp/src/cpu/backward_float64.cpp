// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_float64.cpp"
#include "hwy/foreach_target.h"
// Highway's order: the per-target headers come after foreach_target.h.
#include "cpu/backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {

void backward_float64(const host::Problem& problem, const host::CpuPlan& plan,
                      const host::Operands& operands, void* workspace) {
  backward<double>(problem, plan, operands, workspace);
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onchip::cpu {

HWY_EXPORT(backward_float64);

void backward_float64(const host::Problem& problem, const host::CpuPlan& plan,
                      const host::Operands& operands, void* workspace) {
  HWY_DYNAMIC_DISPATCH(backward_float64)(problem, plan, operands, workspace);
}

}  // namespace onchip::cpu
#endif  // HWY_ONCE
