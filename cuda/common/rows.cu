// SPDX-License-Identifier: Apache-2.0
// Row by row work before and after the main kernels.
#include <algorithm>

#include "common/bwd_rows.cuh"
#include "common/by_dtype.cuh"
#include "common/launchers.hpp"
#include "prims/convert.cuh"
#include "prims/math.cuh"

namespace onchip::cuda {
namespace {

constexpr std::int64_t kClearBlocks = 1024;

/// Rows of a packed tensor outside of [first, end).
struct UnusedRows {
  std::int64_t first, end, total;

  __device__ UnusedRows(const std::int32_t* cu_seqlens, std::int64_t stride, std::int64_t batch,
                        std::int64_t rows)
      : total(rows) {
    first = min(max(std::int64_t{cu_seqlens[0]}, std::int64_t{0}), rows);
    end = max(first, min(std::int64_t{cu_seqlens[batch * stride]}, rows));
  }
  __device__ std::int64_t count() const { return first + total - end; }
  __device__ std::int64_t row(std::int64_t n) const { return n < first ? n : end + n - first; }
};

template <class Element>
__device__ void clear_row(void* memory, const host::Strides& strides, std::int64_t row,
                          std::int64_t head, std::int64_t dim) {
  Element* to = static_cast<Element*>(memory) + host::offset_of(strides, 0, 0, row, head);
  for (std::int64_t e = threadIdx.x % 32; e < dim; e += 32) to[e] = from_float<Element>(0.0F);
}

template <class Element>
__global__ __launch_bounds__(kBlockThreads) void clear_kernel(
    const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const host::Operands& o = params.operands;
  const bool forward = p.pass == Pass::forward;
  const UnusedRows queries(o.cu_seqlens_q, p.cu_seqlens_q, p.batch, p.total_q);
  for (std::int64_t number = warp_number(); number < queries.count() * p.heads_q;
       number += warp_count()) {
    const std::int64_t row = queries.row(number / p.heads_q);
    const std::int64_t head = number % p.heads_q;
    clear_row<Element>(forward ? o.out : o.dq, forward ? p.out : p.dq, row, head,
                       forward ? p.dim_v : p.dim);
    if (forward && o.lse != nullptr && threadIdx.x % 32 == 0) {
      static_cast<float*>(o.lse)[host::offset_of(p.lse, 0, 0, row, head)] = -kInfinity;
    }
  }
  if (forward) return;
  const UnusedRows keys(o.cu_seqlens_k, p.cu_seqlens_k, p.batch, p.total_k);
  for (std::int64_t number = warp_number(); number < keys.count() * p.heads_kv;
       number += warp_count()) {
    const std::int64_t row = keys.row(number / p.heads_kv);
    const std::int64_t head = number % p.heads_kv;
    clear_row<Element>(o.dk, p.dk, row, head, p.dim);
    clear_row<Element>(o.dv, p.dv, row, head, p.dim_v);
  }
}

}  // namespace

cudaError_t launch_clear_unused(const host::KernelParams& params, cudaStream_t stream) {
  const host::Problem& p = params.problem;
  std::int64_t rows = p.total_q * p.heads_q;
  if (p.pass == Pass::backward) rows = std::max(rows, p.total_k * p.heads_kv);
  return by_dtype(p.dtype, [&](auto element) {
    return queue(clear_kernel<decltype(element)>, grid_of(rows, kBlockWarps, kClearBlocks),
                 kBlockThreads, stream, params);
  });
}

cudaError_t launch_prepare_rows(const host::KernelParams& params, cudaStream_t stream) {
  const std::int64_t rows = params.problem.total_q * params.problem.heads_q;
  return by_dtype(params.problem.dtype, [&](auto element) {
    return queue(prepare_rows<decltype(element)>,
                 grid_of(rows, kBlockThreads / prepare_lanes(params.problem)), kBlockThreads,
                 stream, params);
  });
}

cudaError_t launch_finish_dq(const host::KernelParams& params, cudaStream_t stream) {
  const std::int64_t rows = params.problem.total_q * params.problem.heads_q;
  return by_16_bit_dtype(params.problem.dtype, [&](auto element) {
    return queue(finish_dq<decltype(element)>,
                 grid_of(rows, kBlockThreads / finish_lanes(params.problem)), kBlockThreads, stream,
                 params);
  });
}

cudaError_t launch_sink_gradient(const host::KernelParams& params, cudaStream_t stream) {
  return queue(sink_gradient, static_cast<unsigned>(params.problem.heads_q), kBlockThreads, stream,
               params);
}

}  // namespace onchip::cuda
