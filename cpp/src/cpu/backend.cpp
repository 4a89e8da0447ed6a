// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/device.hpp"
#include "cpu/half.hpp"
#include "cpu/kernels.hpp"
#include "cpu/lengths.hpp"
#include "cpu/parallel.hpp"
#include "cpu/philox.hpp"
#include "host/cpu_plan.hpp"
#include "host/sequence.hpp"
#include "onchip/threads.hpp"

namespace onchip::cpu {
namespace {

/// One row of merge_states, in double: parts are few and a row is short.
struct MergeRow {
  std::int64_t b, i, h;
};

void merge_row(const host::MergeProblem& p, std::span<const host::MergePart> parts,
               const MergeRow& at, void* out, void* lse) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto part_lse = [&](const host::MergePart& part) {
    return load_element<double>(p.stats_dtype, part.lse,
                                host::offset_of(part.lse_strides, at.b, 0, at.i, at.h));
  };
  double top = -kInfinity;
  for (const host::MergePart& part : parts) top = std::max(top, part_lse(part));
  const double base = top == -kInfinity ? 0.0 : top;
  double sum = 0;
  for (const host::MergePart& part : parts) sum += std::exp(part_lse(part) - base);
  for (std::int64_t e = 0; e < p.dim_v; ++e) {
    double value = 0;
    for (const host::MergePart& part : parts) {
      const double weight = std::exp(part_lse(part) - base);
      if (weight == 0.0) continue;  // a part that saw nothing may hold anything
      value +=
          weight * load_element<double>(p.dtype, part.out,
                                        host::offset_of(part.out_strides, at.b, 0, at.i, at.h) + e);
    }
    store_element(p.dtype, out, host::offset_of(p.out, at.b, 0, at.i, at.h) + e,
                  sum == 0.0 ? 0.0 : value / sum);
  }
  if (lse == nullptr) return;
  store_element(p.stats_dtype, lse, host::offset_of(p.lse, at.b, 0, at.i, at.h),
                sum == 0.0 ? -kInfinity : base + std::log(sum));
}

class CpuBackend final : public host::Backend {
 public:
  [[nodiscard]] const DeviceInfo& device(std::int32_t /*index*/) const override {
    return cpu_device();
  }

  void forward(const detail::PlanImpl& plan, const host::Operands& operands, void* workspace,
               Stream /*stream*/) const override {
    run(plan, operands, workspace, forward_float32, forward_float64);
  }

  void backward(const detail::PlanImpl& plan, const host::Operands& operands, void* workspace,
                Stream /*stream*/) const override {
    run(plan, operands, workspace, backward_float32, backward_float64);
  }

  void merge_states(const host::MergeProblem& p, std::span<const host::MergePart> parts, void* out,
                    void* lse, Stream /*stream*/) const override {
    auto merge = [&](std::int32_t /*worker*/, std::int64_t task) {
      const MergeRow first{.b = task / p.rows, .i = task % p.rows, .h = 0};
      for (std::int64_t h = 0; h < p.heads; ++h)
        merge_row(p, parts, {first.b, first.i, h}, out, lse);
    };
    parallel_for(num_threads(), p.batch * p.rows, merge);
  }

  void dropout_mask(const TensorView& mask, std::uint32_t threshold, std::uint64_t seed,
                    std::uint64_t offset, Stream /*stream*/) const override {
    const auto& shape = mask.shape;
    const auto& stride = mask.stride;
    auto* to = static_cast<std::uint8_t*>(mask.data);
    auto fill = [&](std::int32_t /*worker*/, std::int64_t task) {
      const std::int64_t batch_head = task / shape[2];
      const std::int64_t i = task % shape[2];
      std::uint8_t* row = to + batch_head / shape[1] * stride[0] +
                          batch_head % shape[1] * stride[1] + i * stride[2];
      PhiloxWords words{};
      for (std::int64_t j = 0; j < shape[3]; ++j) {
        if (j % 8 == 0) words = dropout_words(j, i, batch_head, seed, offset);
        row[j * stride[3]] = dropout_lane(words, j) >= threshold ? 1 : 0;
      }
    };
    parallel_for(num_threads(), shape[0] * shape[1] * shape[2], fill);
  }

 private:
  using Kernel = void(const host::Problem&, const host::CpuPlan&, const host::Operands&, void*);

  static void run(const detail::PlanImpl& plan, const host::Operands& operands, void* workspace,
                  Kernel* float32, Kernel* float64) {
    apply_isa_cap();
    check_lengths(plan.problem, operands);
    // The same call that the planner made, so that both agree on every buffer.
    const host::CpuPlan cpu = host::plan_cpu(plan.problem, plan.info.device.units);
    (plan.problem.dtype == DType::float64 ? float64 : float32)(plan.problem, cpu, operands,
                                                               workspace);
  }
};

}  // namespace

const host::Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace onchip::cpu
