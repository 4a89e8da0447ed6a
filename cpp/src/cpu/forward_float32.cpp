// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_float32.cpp"
#include "hwy/foreach_target.h"
// Highway's order: the per-target headers come after foreach_target.h.
#include "cpu/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {

void forward_float32(const host::Problem& problem, const host::CpuPlan& plan,
                     const host::Operands& operands, void* workspace) {
  forward<float>(problem, plan, operands, workspace);
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onchip::cpu {

HWY_EXPORT(forward_float32);

void forward_float32(const host::Problem& problem, const host::CpuPlan& plan,
                     const host::Operands& operands, void* workspace) {
  HWY_DYNAMIC_DISPATCH(forward_float32)(problem, plan, operands, workspace);
}

}  // namespace onchip::cpu
#endif  // HWY_ONCE
