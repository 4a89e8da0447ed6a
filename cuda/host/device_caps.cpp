// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_caps.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>

#include "cuda/error.hpp"
#include "cuda/launch.hpp"
#include "host/devices.hpp"

namespace onchip::cuda {
namespace {

int attribute(cudaDeviceAttr which, std::int32_t index) {
  int value = 0;
  ONCHIP_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  throw Error(ErrorCode::device,
              std::string("device: no CUDA device can be used: ") + cudaGetErrorString(status));
}

DeviceInfo read_device(std::int32_t index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::device, "device: cuda:" + std::to_string(index) + ", expected one of " +
                                       std::to_string(count) + " devices");
  }
  cudaDeviceProp properties;
  ONCHIP_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  DeviceInfo info;
  info.name = properties.name;
  info.type = DeviceType::cuda;
  info.index = index;
  info.compute_capability = 10 * properties.major + properties.minor;
  info.units = attribute(cudaDevAttrMultiProcessorCount, index);
  info.on_chip_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  info.l2_bytes = attribute(cudaDevAttrL2CacheSize, index);
  info.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  info.family = host::newest_family(info.compute_capability);
  if (info.family == 90 && find_kernels("sm90_fwd_bfloat16_d128").empty()) info.family = 80;
  // Both edges of the memory's clock move data.
  host::fill_peaks(info, 1e3 * attribute(cudaDevAttrClockRate, index),
                   2e3 * attribute(cudaDevAttrMemoryClockRate, index) *
                       attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8);
  return info;
}

}  // namespace

const DeviceInfo& device_caps(std::int32_t index) {
  static std::mutex mutex;
  static std::map<std::int32_t, DeviceInfo> devices;  // nodes never move
  const std::lock_guard lock(mutex);
  const auto found = devices.find(index);
  if (found != devices.end()) return found->second;
  return devices.emplace(index, read_device(index)).first->second;
}

DeviceGuard::DeviceGuard(std::int32_t index) {
  ONCHIP_CUDA_CHECK(cudaGetDevice(&previous_));
  if (previous_ == index) return;
  ONCHIP_CUDA_CHECK(cudaSetDevice(index));
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) static_cast<void>(cudaSetDevice(previous_));
}

}  // namespace onchip::cuda
