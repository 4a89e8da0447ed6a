// SPDX-License-Identifier: Apache-2.0
// CUDA behind host::Backend: everything is queued on the caller's stream, in the caller's memory.
#include "cuda/cuda_backend.hpp"

#include <string>

#include "common/launchers.hpp"
#include "cuda/device_caps.hpp"
#include "cuda/error.hpp"
#include "cuda/launch.hpp"
#include "cuda/params.hpp"

namespace onchip::cuda {
namespace {

cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

/// The kernels of a plan. A plan may have been made for a named device, which can more than this
/// one, or this build.
std::span<const Kernel> kernels_of(const detail::PlanImpl& plan, const DeviceInfo& device) {
  const PlanInfo& info = plan.info;
  const std::span<const Kernel> found = find_kernels(info.kernel);
  if (found.empty()) {
    throw Error(ErrorCode::unsupported, "plan: this build has no kernel " + info.kernel +
                                            " (planned for " + info.device.name +
                                            "); plan for the device that q lies on, or use the cpu "
                                            "backend");
  }
  if (info.on_chip_bytes > device.on_chip_bytes) {
    throw Error(ErrorCode::unsupported, "plan: needs " + std::to_string(info.on_chip_bytes) +
                                            " bytes of shared memory (planned for " +
                                            info.device.name + "), but " + device.name + " has " +
                                            std::to_string(device.on_chip_bytes) +
                                            "; plan for the device that q lies on");
  }
  return found;
}

void check_dtype(const char* name, DType dtype) {
  if (dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32) return;
  throw Error(ErrorCode::unsupported,
              std::string(name) + ": " + name_of(dtype) + " is computed by the cpu backend only");
}

class CudaBackend final : public host::Backend {
 public:
  [[nodiscard]] const DeviceInfo& device(std::int32_t index) const override {
    return device_caps(index);
  }

  void forward(const detail::PlanImpl& plan, const host::Operands& operands, void* workspace,
               Stream stream) const override {
    const host::Problem& p = plan.problem;
    const std::int32_t index = p.device.index;
    const std::span<const Kernel> found = kernels_of(plan, device_caps(index));
    if (p.total_q == 0) return;
    const host::KernelParams params = make_params(plan, operands, workspace);
    const DeviceGuard guard(index);
    if (p.packed) {
      ONCHIP_CUDA_CHECK(launch_first_tile(params, plan.info.tile_q, handle(stream)));
    }
    if (params.blocks > 0) {
      for (const Kernel& kernel : found) launch(kernel, params, index, handle(stream));
    }
    if (params.num_splits > 1) ONCHIP_CUDA_CHECK(launch_combine(params, handle(stream)));
    if (p.packed) ONCHIP_CUDA_CHECK(launch_clear_unused(params, handle(stream)));
  }

  void backward(const detail::PlanImpl& plan, const host::Operands& operands, void* workspace,
                Stream stream) const override {
    const host::Problem& p = plan.problem;
    const std::int32_t index = p.device.index;
    const std::span<const Kernel> found = kernels_of(plan, device_caps(index));
    const host::KernelParams params = make_params(plan, operands, workspace);
    const DeviceGuard guard(index);
    if (p.packed) {
      ONCHIP_CUDA_CHECK(launch_first_tile(params, plan.info.tile_k, handle(stream)));
    }
    if (p.total_q > 0) ONCHIP_CUDA_CHECK(launch_prepare_rows(params, handle(stream)));
    if (params.blocks > 0) {
      for (const Kernel& kernel : found) launch(kernel, params, index, handle(stream));
    }
    if (p.total_q > 0) ONCHIP_CUDA_CHECK(launch_finish_dq(params, handle(stream)));
    if (p.packed && p.total_k > 0) {
      ONCHIP_CUDA_CHECK(launch_clear_unused(params, handle(stream)));
    }
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
