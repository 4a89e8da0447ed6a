// SPDX-License-Identifier: Apache-2.0
// Work of one warp on one row: which row and head it is, and to which sequence it belongs.
#pragma once

#include <cstdint>

#include "common/tile_number.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"

namespace onchip::cuda {

inline constexpr int kRowsPerBlock = 8;  // warps of a block

/// One row of q and one head.
struct QueryRow {
  host::Sequence sequence;
  std::int64_t row = 0;       // among the rows of all sequences
  std::int64_t batch = 0;     // index of its sequence in a dense tensor; packed: 0
  std::int64_t position = 0;  // in its sequence; below 0: in none
  int head = 0;
  bool dense = true;

  /// This warp's row, number `number` counted over (row, head); false past the last.
  __device__ __forceinline__ bool find(const host::KernelParams& params, std::int64_t number) {
    const host::Problem& p = params.problem;
    if (number >= p.total_q * p.heads_q) return false;
    row = number / p.heads_q;
    head = static_cast<int>(number - row * p.heads_q);
    if (p.packed) {
      dense = false;
      if (p.batch == 0) {
        position = -1;
        return true;
      }
      const std::int64_t b =
          find_sequence(params.operands.cu_seqlens_q, p.cu_seqlens_q, p.batch, row);
      sequence = host::sequence_at(p, params.operands, b);
      position = row - sequence.q_start;
      if (position >= sequence.q_rows) position = -1;
    } else {
      batch = row / p.seqlen_q;
      position = row - batch * p.seqlen_q;
      sequence = host::sequence_at(p, params.operands, batch);
    }
    return true;
  }
  __device__ __forceinline__ bool find(const host::KernelParams& params) {
    return find(params, static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32);
  }

  /// Whether the row belongs to a sequence and lies within seqused_q.
  [[nodiscard]] __device__ __forceinline__ bool counts() const {
    return position >= 0 && position < sequence.q_len;
  }
  /// Element offset of the row in a query-side tensor.
  [[nodiscard]] __device__ __forceinline__ std::int64_t offset(const host::Strides& strides) const {
    return host::offset_of(strides, batch, 0, dense ? position : row, head);
  }
};

}  // namespace onchip::cuda
