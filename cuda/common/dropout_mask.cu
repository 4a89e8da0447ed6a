// SPDX-License-Identifier: Apache-2.0
// The dropout mask on its own: one thread for the eight keys of one Philox counter.
#include "common/by_dtype.cuh"
#include "common/launchers.hpp"
#include "prims/philox.cuh"

namespace onchip::cuda {
namespace {

__global__ __launch_bounds__(kBlockThreads) void dropout_mask_kernel(
    const __grid_constant__ MaskArguments a) {
  const std::int64_t blocks = (a.shape[3] + 7) / 8;
  const std::int64_t items = a.shape[0] * a.shape[1] * a.shape[2] * blocks;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kBlockThreads;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
       item < items; item += step) {
    const std::int64_t block = item % blocks;
    const std::int64_t i = item / blocks % a.shape[2];
    const std::int64_t batch_head = item / blocks / a.shape[2];
    std::uint32_t word[4] = {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(i),
                             static_cast<std::uint32_t>(batch_head),
                             static_cast<std::uint32_t>(a.offset)};
    philox(a.seed, word[0], word[1], word[2], word[3]);
    std::uint8_t* row = a.mask + batch_head / a.shape[1] * a.stride[0] +
                        batch_head % a.shape[1] * a.stride[1] + i * a.stride[2];
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
      const std::int64_t j = 8 * block + lane;
      if (j >= a.shape[3]) break;
      const std::uint32_t draw = word[lane / 2] >> (lane % 2 * 16) & 0xffffU;
      row[j * a.stride[3]] = draw >= a.threshold ? 1 : 0;
    }
  }
}

}  // namespace

cudaError_t launch_dropout_mask(const MaskArguments& a, cudaStream_t stream) {
  const std::int64_t items = a.shape[0] * a.shape[1] * a.shape[2] * ((a.shape[3] + 7) / 8);
  return queue(dropout_mask_kernel, grid_of(items, kBlockThreads), kBlockThreads, stream, a);
}

}  // namespace onchip::cuda
