// SPDX-License-Identifier: Apache-2.0
// CUDA behind host::Backend: everything is queued on the caller's stream, in the caller's memory.
#include "cuda/cuda_backend.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "common/launchers.hpp"
#include "cuda/device_caps.hpp"
#include "cuda/error.hpp"
#include "cuda/hopper.hpp"
#include "cuda/launch.hpp"
#include "cuda/params.hpp"
#include "host/checked.hpp"
#include "host/gpu_plan.hpp"
#include "host/hopper_plan.hpp"
#include "host/planner.hpp"

namespace onchip::cuda {
namespace {

cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

/// The kernels of a plan, which may ask for a family that this build has not.
std::span<const Kernel> kernels_of(const PlanInfo& info) {
  const std::span<const Kernel> found = find_kernels(info.kernel);
  if (!found.empty()) return found;
  throw Error(ErrorCode::unsupported,
              "plan: this build has no kernel " + info.kernel + " (planned for " +
                  info.device.name +
                  "); plan for the device that q lies on, or use the cpu backend");
}

void check_dtype(const char* name, DType dtype) {
  if (dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32) return;
  throw Error(ErrorCode::unsupported,
              std::string(name) + ": " + name_of(dtype) + " is computed by the cpu backend only");
}

TileCut queries_cut(std::int64_t rows) { return {static_cast<int>(rows)}; }
TileCut keys_cut(std::int64_t rows) { return {static_cast<int>(rows), true}; }
TileCut hopper_cut(const host::Problem& p, std::int64_t rows) {
  const std::int32_t shift = host::hopper_pack_shift(p, rows);
  return {static_cast<int>(rows >> shift), false,
          static_cast<int>(p.heads_q / p.heads_kv >> shift)};
}

/// Kernels of the backward pass that are no plan's own: by dtype and greatest D.
constexpr std::array kBeside = {"float16_d64",   "float16_d128",  "float16_d256", "bfloat16_d64",
                                "bfloat16_d128", "bfloat16_d256", "float32_d256"};
using KernelsBeside = std::array<std::span<const Kernel>, kBeside.size()>;

KernelsBeside kernels_beside(const std::string& what) {
  KernelsBeside all;
  for (std::size_t n = 0; n < all.size(); ++n) {
    all[n] = find_kernels("sm80_" + what + "_" + kBeside[n]);
  }
  return all;
}

std::span<const Kernel> choose(const KernelsBeside& all, const host::Problem& p) {
  if (host::row_kernels(p)) return all.back();
  const std::int64_t dim = std::max(p.dim, p.dim_v);
  const std::size_t first = p.dtype == DType::float16 ? 0 : 3;
  return all[first + (dim > 64 ? 1 : 0) + (dim > 128 ? 1 : 0)];
}

void launch(std::span<const Kernel> kernels, const host::KernelParams& params, std::int64_t blocks,
            Stream stream) {
  if (blocks == 0) return;
  for (const Kernel& kernel : kernels) {
    launch(kernel, &params, blocks, params.problem.device.index, handle(stream));
  }
}

/// dq where no float32 sums of it are kept.
void launch_dq(host::KernelParams params, Stream stream) {
  static const KernelsBeside all = kernels_beside("dq");
  const host::Problem& p = params.problem;
  const std::span<const Kernel> found = choose(all, p);
  const std::int64_t tile = found.front().tile_q;
  params.schedule(host::query_tiles(p, tile), 1);
  if (p.packed && !host::row_kernels(p)) {
    ONCHIP_CUDA_CHECK(launch_first_tile(params, queries_cut(tile), handle(stream)));
  }
  launch(found, params, host::query_blocks(p, tile), stream);
}

void launch_dbias(const host::KernelParams& params, Stream stream) {
  static const KernelsBeside all = kernels_beside("dbias");
  const host::BiasShape& shape = params.problem.bias_shape;
  const std::span<const Kernel> found = choose(all, params.problem);
  const std::int64_t planes = shape.batch * shape.head;
  const std::int64_t blocks =
      host::row_kernels(params.problem)
          ? host::ceil_div(planes * shape.row * shape.col, found.front().tile_q)
          : planes * host::ceil_div(shape.row, found.front().tile_q) *
                host::ceil_div(shape.col, found.front().tile_k);
  launch(found, params, blocks, stream);
}

class CudaBackend final : public host::Backend {
 public:
  [[nodiscard]] const DeviceInfo& device(std::int32_t index) const override {
    return device_caps(index);
  }

  void forward(const detail::PlanImpl& plan, const host::Operands& operands, void* workspace,
               Stream stream) const override {
    const host::Problem& p = plan.problem;
    const std::span<const Kernel> found = kernels_of(plan.info);
    if (p.total_q == 0) return;
    const host::KernelParams params = make_params(plan, operands, workspace);
    const bool hopper = host::is_hopper(plan.info);
    if (hopper && !params.aligned) {
      forward({p, host::plan_without_hopper(p, plan.info.device)}, operands, workspace, stream);
      return;
    }
    const DeviceGuard guard(p.device.index);
    if (p.packed) {
      const TileCut cut = hopper ? hopper_cut(p, plan.info.tile_q) : queries_cut(plan.info.tile_q);
      ONCHIP_CUDA_CHECK(launch_first_tile(params, cut, handle(stream)));
    }
    if (hopper) {
      launch_hopper_forward(found.front(), plan.info, params, handle(stream));
    } else {
      launch(found, params, params.blocks, stream);
    }
    if (params.num_splits > 1) ONCHIP_CUDA_CHECK(launch_combine(params, handle(stream)));
    if (p.packed) ONCHIP_CUDA_CHECK(launch_clear_unused(params, handle(stream)));
  }

  void backward(const detail::PlanImpl& plan, const host::Operands& operands, void* workspace,
                Stream stream) const override {
    const host::Problem& p = plan.problem;
    const std::span<const Kernel> found = kernels_of(plan.info);
    const host::KernelParams params = make_params(plan, operands, workspace);
    const DeviceGuard guard(p.device.index);
    if (p.packed) {
      ONCHIP_CUDA_CHECK(launch_first_tile(params, keys_cut(plan.info.tile_k), handle(stream)));
    }
    if (p.total_q > 0) ONCHIP_CUDA_CHECK(launch_prepare_rows(params, handle(stream)));
    launch(found, params, params.blocks, stream);
    if (p.has_dbias) launch_dbias(params, stream);
    if (p.has_dsinks) ONCHIP_CUDA_CHECK(launch_sink_gradient(params, handle(stream)));
    // Last: until here the statistics of the rows may lie in dq.
    if (params.dq_sum == nullptr) {
      launch_dq(params, stream);
    } else if (p.total_q > 0) {
      ONCHIP_CUDA_CHECK(launch_finish_dq(params, handle(stream)));
    }
    if (p.packed) ONCHIP_CUDA_CHECK(launch_clear_unused(params, handle(stream)));
  }

  void merge_states(const host::MergeProblem& p, std::span<const host::MergePart> parts, void* out,
                    void* lse, Stream stream) const override {
    check_dtype("out", p.dtype);
    if (p.batch * p.rows * p.heads == 0) return;
    MergeArguments<kManyParts> arguments;
    arguments.problem = p;
    arguments.out = out;
    arguments.lse = lse;
    arguments.parts = static_cast<int>(parts.size());
    for (std::size_t n = 0; n < parts.size(); ++n) {
      const host::MergePart& part = parts[n];
      arguments.part[n] = {part.out, part.lse, part.out_strides, part.lse_strides};
    }
    const DeviceGuard guard(p.device.index);
    ONCHIP_CUDA_CHECK(launch_merge(arguments, handle(stream)));
  }

  void dropout_mask(const TensorView& mask, std::uint32_t threshold, std::uint64_t seed,
                    std::uint64_t offset, Stream stream) const override {
    MaskArguments arguments;
    arguments.mask = static_cast<std::uint8_t*>(mask.data);
    bool empty = false;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      arguments.shape[axis] = mask.shape[axis];
      arguments.stride[axis] = mask.stride[axis];
      empty = empty || mask.shape[axis] == 0;
    }
    if (empty) return;
    arguments.threshold = threshold;
    arguments.seed = seed;
    arguments.offset = offset;
    const DeviceGuard guard(mask.device.index);
    ONCHIP_CUDA_CHECK(launch_dropout_mask(arguments, handle(stream)));
  }
};

}  // namespace

const host::Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

}  // namespace onchip::cuda
