// SPDX-License-Identifier: Apache-2.0
// Score options one pair (row, key) at a time: softcap, bias, ALiBi, dropout. Used by the full
// instances only; the lean ones have none of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "prims/math.cuh"
#include "prims/philox.cuh"

namespace onchip::cuda {

/// What the options of one query row need.
struct RowOptions {
  int position = 0, batch_head = 0;
  float slope = 0.0F, diagonal = 0.0F;  // ALiBi: slope |diagonal - j|
  std::int64_t bias = 0;                // offset of bias[b, h, i, 0]
  int bias_end = 0;                     // keys from here on have none

  __device__ __forceinline__ RowOptions(const host::KernelParams& params, const QueryWork& work,
                                        int row) {
    const host::Problem& p = params.problem;
    const host::Sequence& s = work.sequence;
    // Rows past the last are computed and thrown away: let them read what the last one reads.
    const int safe = min(row, work.rows - 1);
    const int head = work.head_of(safe);
    position = min(work.position_of(safe), max(static_cast<int>(s.q_len) - 1, 0));
    batch_head = static_cast<int>(s.batch * p.heads_q + head);
    diagonal = static_cast<float>(position + s.k_len - s.q_len);
    if (p.has_alibi) {
      slope = static_cast<const float*>(
          params.operands.alibi_slopes)[s.batch * p.alibi_batch + head * p.alibi_head];
    }
    bias = s.batch * p.bias.batch + head * p.bias.head + position * p.bias.row;
    // A packed sequence may be longer than the bias: its rows and keys beyond get none.
    const host::BiasShape& shape = p.bias_shape;
    const bool beyond = shape.row != 1 && position >= shape.row;
    bias_end = beyond ? 0 : static_cast<int>(shape.col == 1 ? s.k_len : min(shape.col, s.k_len));
  }
};

__device__ __forceinline__ float load_float(DType dtype, const void* base, std::int64_t at) {
  switch (dtype) {
    case DType::float16: return __half2float(static_cast<const __half*>(base)[at]);
    case DType::bfloat16: return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[at]);
    default: return static_cast<const float*>(base)[at];
  }
}

__device__ __forceinline__ void store_float(DType dtype, void* base, std::int64_t at, float value) {
  switch (dtype) {
    case DType::float16: static_cast<__half*>(base)[at] = __float2half_rn(value); break;
    case DType::bfloat16: static_cast<__nv_bfloat16*>(base)[at] = __float2bfloat16_rn(value); break;
    default: static_cast<float*>(base)[at] = value;
  }
}

/// Contract, rules 1 to 3: q.k to a score. `slope` receives d softcap / ds.
__device__ __forceinline__ float natural_score(const host::KernelParams& params,
                                               const RowOptions& row, int j, float scale, float s,
                                               float& slope) {
  const host::Problem& p = params.problem;
  s *= scale;
  slope = 1.0F;
  if (p.softcap > 0) {
    const float cap = static_cast<float>(p.softcap);
    const float t = tanhf(s / cap);
    s = cap * t;
    slope = 1.0F - t * t;
  }
  if (p.bias_dtype != DType::none && j < row.bias_end) {
    s += load_float(p.bias_dtype, params.operands.bias, row.bias + j * p.bias.col);
  }
  if (p.has_alibi) s -= row.slope * fabsf(row.diagonal - static_cast<float>(j));
  return s;
}

/// The same in base 2.
__device__ __forceinline__ float option_score(const host::KernelParams& params,
                                              const RowOptions& row, int j, float scale, float s,
                                              float& slope) {
  return kLog2e * natural_score(params, row, j, scale, s, slope);
}

/// The draws of keys [8 * (j / 8), + 8): word w holds lanes 2w and 2w + 1.
__device__ __forceinline__ std::uint32_t dropout_word(const host::KernelParams& params,
                                                      const RowOptions& row, int j_block, int w) {
  std::uint32_t c0 = static_cast<std::uint32_t>(j_block);
  std::uint32_t c1 = static_cast<std::uint32_t>(row.position);
  std::uint32_t c2 = static_cast<std::uint32_t>(row.batch_head);
  std::uint32_t c3 = static_cast<std::uint32_t>(params.operands.offset);
  philox(params.operands.seed, c0, c1, c2, c3);
  return w == 0 ? c0 : w == 1 ? c1 : w == 2 ? c2 : c3;
}

}  // namespace onchip::cuda
