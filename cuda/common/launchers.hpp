// SPDX-License-Identifier: Apache-2.0
// The small kernels around the main ones. Each is queued on `stream`; nothing is waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "host/kernel_params.hpp"

namespace onchip::cuda {

/// How a sequence is cut into tiles of one KV head.
struct TileCut {
  int rows = 0;       // of a tile
  bool keys = false;  // keys, not queries
  int heads_apart =
      0;  // heads whose tiles are apart whatever the length; 0: as common/work.cuh does
};

/// first_tile[b] = tiles of one KV head before sequence b.
cudaError_t launch_first_tile(const host::KernelParams& params, const TileCut& cut,
                              cudaStream_t stream);

/// out and lse from the partial results of the splits.
cudaError_t launch_combine(const host::KernelParams& params, cudaStream_t stream);

/// Packed rows of no sequence: forward, out 0 and lse -inf; backward, dq, dk and dv 0.
cudaError_t launch_clear_unused(const host::KernelParams& params, cudaStream_t stream);

/// Before the backward kernel: delta, lse2, dq_sum = 0. After it: dq.
cudaError_t launch_prepare_rows(const host::KernelParams& params, cudaStream_t stream);
cudaError_t launch_finish_dq(const host::KernelParams& params, cudaStream_t stream);

cudaError_t launch_sink_gradient(const host::KernelParams& params, cudaStream_t stream);

inline constexpr int kManyParts = static_cast<int>(kMaxMergeParts);

/// Parts of merge_states that one launch takes.
template <int kCount>
struct MergeArguments {
  host::MergeProblem problem;
  void *out = nullptr, *lse = nullptr;
  int parts = 0;
  struct Part {
    const void *out, *lse;
    host::Strides out_strides, lse_strides;
  } part[kCount];
};
cudaError_t launch_merge(const MergeArguments<kManyParts>& arguments, cudaStream_t stream);

/// A dropout mask: dense-strided uint8 (B, H, Sq, Sk).
struct MaskArguments {
  std::uint8_t* mask = nullptr;
  std::int64_t shape[4] = {}, stride[4] = {};
  std::uint32_t threshold = 0;
  std::uint64_t seed = 0, offset = 0;
};
cudaError_t launch_dropout_mask(const MaskArguments& arguments, cudaStream_t stream);

}  // namespace onchip::cuda
