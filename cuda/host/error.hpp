// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "onchip/status.hpp"

namespace onchip::cuda {

/// Throws `Error` (device) for a failed call, and clears the error that the runtime keeps, so that
/// the caller's next call does not find it.
inline void check(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(ErrorCode::device, std::string(cudaGetErrorName(status)) + ": " +
                                     cudaGetErrorString(status) + " (" + expression + " at " +
                                     file + ":" + std::to_string(line) + ")");
}

}  // namespace onchip::cuda

#define ONCHIP_CUDA_CHECK(expression) \
  ::onchip::cuda::check((expression), #expression, __FILE_NAME__, __LINE__)
