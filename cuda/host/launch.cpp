// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.hpp"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <vector>

#include "cuda/error.hpp"

namespace onchip::cuda {
namespace {

constexpr std::int32_t kTrackedDevices = 64;

/// Lets a block of `kernel` have its shared memory: once for each device, where 64 bits remember.
void allow_shared_memory(const Kernel& kernel, std::int32_t device) {
  static std::vector<std::atomic<std::uint64_t>> allowed(kernels().size());
  auto& devices = allowed[static_cast<std::size_t>(&kernel - kernels().data())];
  const std::uint64_t bit = device < kTrackedDevices ? std::uint64_t{1} << device : 0;
  if ((devices.load(std::memory_order_acquire) & bit) != 0) return;
  ONCHIP_CUDA_CHECK(cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes));
  devices.fetch_or(bit, std::memory_order_release);
}

}  // namespace

std::span<const Kernel> find_kernels(std::string_view name) {
  static const std::unordered_map<std::string_view, std::span<const Kernel>> by_name = [] {
    std::unordered_map<std::string_view, std::span<const Kernel>> map;
    const std::span<const Kernel> all = kernels();
    for (auto first = all.begin(); first != all.end();) {
      const std::string_view shared = first->name;
      const auto last = std::find_if(first, all.end(),
                                     [&](const Kernel& kernel) { return kernel.name != shared; });
      map[shared] = {first, last};
      first = last;
    }
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? std::span<const Kernel>() : found->second;
}

void launch(const Kernel& kernel, const void* params, std::int64_t blocks, std::int32_t device,
            cudaStream_t stream) {
  allow_shared_memory(kernel, device);
  void* arguments[] = {const_cast<void*>(params)};
  ONCHIP_CUDA_CHECK(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(blocks)),
                                     dim3(static_cast<unsigned>(kernel.threads)), arguments,
                                     static_cast<std::size_t>(kernel.shared_bytes), stream));
}

}  // namespace onchip::cuda
