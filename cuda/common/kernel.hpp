// SPDX-License-Identifier: Apache-2.0
// One kernel instance as the host sees it. cuda/instances.cmake lists them all.
#pragma once

#include <span>

namespace onchip::cuda {

/// Buffers of tiles in shared memory; 0: the traits have no such number.
struct Buffers {
  int k = 0, v = 0, q = 0;
};

struct Kernel {
  const char* name = nullptr;  // the plan's; kernels of one name run one after another
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0;
  int tile_q = 0, tile_k = 0;
  Buffers buffers;
};

/// `function` takes one argument, host::KernelParams; T is the instance's traits.
template <class T, class Function>
Kernel describe(const char* name, Function* function, int shared_bytes) {
  Buffers buffers;
  if constexpr (requires { T::kStages; }) buffers.k = buffers.v = T::kStages;
  if constexpr (requires { T::kStagesV; }) buffers.v = T::kStagesV;
  if constexpr (requires { T::kQStages; }) buffers.q = T::kQStages;
  return {
      name,   reinterpret_cast<const void*>(function), T::kThreads, shared_bytes, T::kBr, T::kBc,
      buffers};
}

/// Every instance of this build, those of one name side by side.
std::span<const Kernel> kernels();

}  // namespace onchip::cuda
