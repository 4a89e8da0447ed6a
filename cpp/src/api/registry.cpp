// SPDX-License-Identifier: Apache-2.0
// The backends of this build, by name: static initialisers would vanish from a static library.
#include "cpu/backend.hpp"
#include "host/backend.hpp"
#ifdef ONCHIP_HAS_CUDA
#include "cuda/cuda_backend.hpp"
#endif
#include "host/check.hpp"

namespace onchip::host {

const Backend& backend_for(DeviceType type, const char* argument) {
  if (type == DeviceType::cpu) return cpu::cpu_backend();
#ifdef ONCHIP_HAS_CUDA
  if (type == DeviceType::cuda) return cuda::cuda_backend();
#endif
  refuse(argument,
         "needs CUDA, but this build has no CUDA backend; build it with ONCHIP_CUDA=1, or "
         "use the CPU");
}

}  // namespace onchip::host
