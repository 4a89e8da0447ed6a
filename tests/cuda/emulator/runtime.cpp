// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that the library and its tests call, for one emulated device.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "block.hpp"
#include "common/kernel.hpp"
#include "hopper.hpp"
#include "host/kernel_params.hpp"
#include "sm90/fwd_params.hpp"

namespace {

constexpr std::size_t kAlignment = 256;

/// ONCHIP_EMULATED_SHARED_KIB: shared memory of a block, which chooses the kernels.
int shared_bytes() {
  const char* text = std::getenv("ONCHIP_EMULATED_SHARED_KIB");
  return (text == nullptr ? 227 : std::atoi(text)) << 10;
}

/// ONCHIP_EMULATED_CAPABILITY: 80, or 90 for Hopper's kernels.
bool is_hopper_device() {
  const char* text = std::getenv("ONCHIP_EMULATED_CAPABILITY");
  return text != nullptr && std::atoi(text) == 90;
}

/// Few where blocks stay and take one tile after another.
int multiprocessors() { return is_hopper_device() ? 3 : 16; }

bool is_hopper_kernel(const void* function) {
  const auto all = onchip::cuda::kernels();
  return std::any_of(all.begin(), all.end(), [&](const onchip::cuda::Kernel& kernel) {
    return kernel.function == function && std::string_view(kernel.name).starts_with("sm90");
  });
}

/// A kernel takes one argument, of its family's type.
template <class Params>
void launch_with(const void* function, dim3 blocks, dim3 threads, void** arguments,
                 std::size_t shared) {
  const auto kernel = reinterpret_cast<void (*)(Params)>(const_cast<void*>(function));
  const auto& params = *static_cast<const Params*>(arguments[0]);
  emulator::run(blocks.x, threads.x, shared, [&] { kernel(params); });
}

struct Allocation {
  void* pages;
  std::size_t bytes;
};
std::mutex mutex;
std::map<void*, Allocation> allocations;

}  // namespace

/// Memory full of NaN, with a page behind it that must not be touched.
cudaError_t cudaMalloc(void** pointer, std::size_t size) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t bytes = (rounded + page - 1) / page * page;
  void* pages =
      mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::memset(pages, 0xFF, bytes);
  mprotect(static_cast<std::byte*>(pages) + bytes, page, PROT_NONE);
  *pointer = static_cast<std::byte*>(pages) + bytes - rounded;
  const std::lock_guard lock(mutex);
  allocations[*pointer] = {pages, bytes + page};
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(pointer);
  if (found == allocations.end()) return cudaErrorInvalidValue;
  munmap(found->second.pages, found->second.bytes);
  allocations.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  return cudaMemset(to, value, bytes);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool found = std::string_view(symbol) == "cuTensorMapEncodeTiled";
  *function = found ? emulator::tensor_map_encoder() : nullptr;
  *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 blocks, dim3 threads, void** arguments,
                             std::size_t shared, cudaStream_t /*stream*/) {
  if (is_hopper_kernel(function)) {
    launch_with<onchip::cuda::sm90::ForwardParams>(function, blocks, threads, arguments, shared);
  } else {
    launch_with<onchip::host::KernelParams>(function, blocks, threads, arguments, shared);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* /*function*/, cudaFuncAttribute /*attribute*/,
                                 int value) {
  return value <= shared_bytes() ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int /*device*/) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->major = is_hopper_device() ? 9 : 8;
  properties->totalGlobalMem = std::size_t{1} << 34;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? shared_bytes()
           : attribute == cudaDevAttrMultiProcessorCount        ? multiprocessors()
                                                                : 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaSuccess ? "cudaSuccess" : "an error";
}
const char* cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
