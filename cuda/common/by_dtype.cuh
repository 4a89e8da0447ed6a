// SPDX-License-Identifier: Apache-2.0
// From a run-time dtype to an element type, and grids for kernels that stride over their work.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "onchip/tensor.hpp"

namespace onchip::cuda {

inline constexpr int kBlockThreads = 256;
inline constexpr int kBlockWarps = kBlockThreads / 32;

/// Calls f with a value of the element type of `dtype`, one that GPU kernels take.
template <class F>
cudaError_t by_dtype(DType dtype, F f) {
  switch (dtype) {
    case DType::float16: return f(__half());
    case DType::bfloat16: return f(__nv_bfloat16());
    case DType::float32: return f(0.0F);
    default: return cudaErrorInvalidValue;
  }
}

/// The same for the kernels that know 16-bit elements only.
template <class F>
cudaError_t by_16_bit_dtype(DType dtype, F f) {
  switch (dtype) {
    case DType::float16: return f(__half());
    case DType::bfloat16: return f(__nv_bfloat16());
    default: return cudaErrorInvalidValue;
  }
}

/// Queues a kernel. The status is of this launch alone: cudaGetLastError after <<<>>> would also
/// tell what the caller left behind.
template <class... Parameters>
cudaError_t queue(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
                  const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// Enough blocks for `items` at `per_block`, or `most`: the kernel strides over the rest.
inline dim3 grid_of(std::int64_t items, std::int64_t per_block, std::int64_t most = 2147483647) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, most)));
}

/// Number of this thread's warp among those of the grid, and how many there are.
__device__ __forceinline__ std::int64_t warp_number() {
  return static_cast<std::int64_t>(blockIdx.x) * kBlockWarps + threadIdx.x / 32;
}
__device__ __forceinline__ std::int64_t warp_count() {
  return static_cast<std::int64_t>(gridDim.x) * kBlockWarps;
}

}  // namespace onchip::cuda
