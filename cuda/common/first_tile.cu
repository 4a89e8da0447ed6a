// SPDX-License-Identifier: Apache-2.0
// Where the tiles of each packed sequence begin: lengths are known on the device only.
#include "common/by_dtype.cuh"
#include "common/launchers.hpp"
#include "host/sequence.hpp"

namespace onchip::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kPerThread = 4;  // sequences of a thread in one round

/// Tiles of one KV head in sequence b; common/work.cuh, common/key_work.cuh and sm90/fwd_work.cuh
/// cut it so.
__device__ std::int64_t tiles_of(const host::KernelParams& params, std::int64_t b,
                                 const TileCut& cut) {
  const int tile = cut.rows;
  const host::Problem& p = params.problem;
  const host::Sequence s = host::sequence_at(p, params.operands, b);
  if (cut.keys) return (s.k_rows + tile - 1) / tile;
  if (cut.heads_apart > 0) return (s.q_rows + tile - 1) / tile * cut.heads_apart;
  const std::int64_t group = p.heads_q / p.heads_kv;
  return s.q_rows < tile ? (s.q_rows * group + tile - 1) / tile
                         : (s.q_rows + tile - 1) / tile * group;
}

/// Sum over the threads before this one; `total` receives that over all.
__device__ std::int64_t sum_before(std::int64_t value, std::int64_t& total) {
  __shared__ std::int64_t warp_sums[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::int64_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t left = __shfl_up_sync(0xffffffffU, sum, step);
    if (lane >= step) sum += left;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  std::int64_t before = 0;
  total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  __syncthreads();
  return before + sum - value;
}

__global__ __launch_bounds__(kThreads) void first_tile_kernel(
    const __grid_constant__ host::KernelParams params, TileCut cut) {
  const std::int64_t batch = params.problem.batch;
  std::int64_t carry = 0;
  for (std::int64_t round = 0; round < batch; round += kThreads * kPerThread) {
    const std::int64_t first = round + static_cast<std::int64_t>(threadIdx.x) * kPerThread;
    std::int64_t tiles[kPerThread];
    std::int64_t sum = 0;
    for (int n = 0; n < kPerThread; ++n) {
      tiles[n] = first + n < batch ? tiles_of(params, first + n, cut) : 0;
      sum += tiles[n];
    }
    std::int64_t total;
    std::int64_t at = carry + sum_before(sum, total);
    for (int n = 0; n < kPerThread && first + n < batch; ++n) {
      params.first_tile[first + n] = at;
      at += tiles[n];
    }
    carry += total;
  }
  if (threadIdx.x == 0) params.first_tile[batch] = carry;
}

}  // namespace

cudaError_t launch_first_tile(const host::KernelParams& params, const TileCut& cut,
                              cudaStream_t stream) {
  return queue(first_tile_kernel, 1, kThreads, stream, params, cut);
}

}  // namespace onchip::cuda
