// SPDX-License-Identifier: Apache-2.0
#include "cuda/hopper.hpp"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <string>

#include "cuda/error.hpp"
#include "cuda/launch.hpp"
#include "host/hopper_plan.hpp"
#include "sm90/fwd_params.hpp"

namespace onchip::cuda {
namespace {

constexpr std::int64_t kPanel = 64;  // columns of a box: rows of 128 bytes, which is the swizzle
constexpr std::int64_t kGroupRows = 64;  // of a warpgroup

/// cuTensorMapEncodeTiled of the driver, which is not linked.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    ONCHIP_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                       cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess || found == nullptr) {
      throw Error(
          ErrorCode::device,
          "cuTensorMapEncodeTiled: this driver has none, expected one for CUDA 12 or later");
    }
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

/// One axis of a map: elements, their distance in elements, and how many a box takes.
struct Axis {
  std::int64_t extent, stride, box;
};

/// The first axis is D, whose stride is 1.
template <std::size_t kRank>
CUtensorMap make_map(const host::Problem& p, const void* data,
                     const std::array<Axis, kRank>& axes) {
  std::array<cuuint64_t, kRank> extents;
  std::array<cuuint64_t, kRank - 1> strides;
  std::array<cuuint32_t, kRank> box;
  std::array<cuuint32_t, kRank> steps;
  const std::int64_t bytes = size_of(p.dtype);
  for (std::size_t n = 0; n < kRank; ++n) {
    extents[n] = static_cast<cuuint64_t>(axes[n].extent);
    box[n] = static_cast<cuuint32_t>(axes[n].box);
    steps[n] = 1;
    // The stride of a single element is not used, but must be one that TMA takes.
    if (n > 0)
      strides[n - 1] = static_cast<cuuint64_t>(axes[n].extent > 1 ? axes[n].stride * bytes : 16);
  }
  CUtensorMap map;
  const CUresult status =
      encode_tiled()(&map,
                     p.dtype == DType::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                     kRank, const_cast<void*>(data), extents.data(), strides.data(), box.data(),
                     steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorCode::device, "cuTensorMapEncodeTiled: error " + std::to_string(status));
  }
  return map;
}

/// (D, heads of a group, rows, KV heads, batch).
CUtensorMap query_map(const host::KernelParams& params, std::int32_t shift) {
  const host::Problem& p = params.problem;
  const std::int64_t group = p.heads_q / p.heads_kv;
  return make_map<5>(p, params.operands.q,
                     {{{p.dim, 1, kPanel},
                       {group, p.q.head, std::int64_t{1} << shift},
                       {p.packed ? p.total_q : p.seqlen_q, p.q.row, kGroupRows >> shift},
                       {p.heads_kv, p.q.head * group, 1},
                       {p.packed ? 1 : p.batch, p.q.batch, 1}}});
}

/// (D, rows, KV heads, batch).
CUtensorMap key_map(const host::Problem& p, const void* data, std::int64_t dim,
                    const host::Strides& strides, std::int64_t tile_k) {
  return make_map<4>(p, data,
                     {{{dim, 1, kPanel},
                       {p.has_cu_seqlens_k ? p.total_k : p.seqlen_k, strides.row, tile_k},
                       {p.heads_kv, strides.head, 1},
                       {p.has_cu_seqlens_k ? 1 : p.batch, strides.batch, 1}}});
}

}  // namespace

void launch_hopper_forward(const Kernel& kernel, const PlanInfo& info,
                           const host::KernelParams& params, cudaStream_t stream) {
  const host::Problem& p = params.problem;
  sm90::ForwardParams arguments;
  arguments.common = params;
  arguments.safe = p.softmax == Softmax::safe ? 1 : 0;
  arguments.pack_shift = host::hopper_pack_shift(p, info.tile_q);
  arguments.q = query_map(params, arguments.pack_shift);
  arguments.k = key_map(p, params.operands.k, p.dim, p.k, info.tile_k);
  arguments.v = key_map(p, params.operands.v, p.dim_v, p.v, info.tile_k);
  if (params.next_tile != nullptr) {
    ONCHIP_CUDA_CHECK(cudaMemsetAsync(params.next_tile, 0, sizeof(*params.next_tile), stream));
  }
  launch(kernel, &arguments, info.grid, p.device.index, stream);
}

}  // namespace onchip::cuda
