// SPDX-License-Identifier: Apache-2.0
// One kernel instance as the host sees it. cuda/instances.cmake lists them all.
#pragma once

#include <span>

namespace onchip::cuda {

struct Kernel {
  const char* name = nullptr;  // the plan's; kernels of one name run one after another
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0;
  int tile_q = 0, tile_k = 0;
  int stages = 0;  // of tiles in shared memory; 0: the traits have no such number
};

/// `function` takes one argument, host::KernelParams; T is the instance's traits.
template <class T, class Function>
Kernel describe(const char* name, Function* function, int shared_bytes) {
  int stages = 0;
  if constexpr (requires { T::kStages; }) stages = T::kStages;
  return {name,  reinterpret_cast<const void*>(function), T::kThreads, shared_bytes, T::kBr, T::kBc,
          stages};
}

/// Every instance of this build, those of one name side by side.
std::span<const Kernel> kernels();

}  // namespace onchip::cuda
