// SPDX-License-Identifier: Apache-2.0
// validate -> plan -> backend. Nothing is launched or written before every check has passed.
#include "onchip/attention.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "host/backend.hpp"
#include "host/check.hpp"
#include "host/devices.hpp"
#include "host/plan_impl.hpp"
#include "host/problem.hpp"
#include "onchip/threads.hpp"

namespace onchip {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;

DeviceInfo device_of(const Device& device) {
  DeviceInfo info = host::backend_for(device.type).device(device.index);
  if (device.type == DeviceType::cpu) info.units = num_threads();
  return info;
}

void check_workspace(const PlanInfo& info, const void* workspace, std::size_t bytes) {
  if (info.workspace_bytes == 0) return;
  if (workspace == nullptr || bytes < info.workspace_bytes) {
    host::reject("workspace", "has " + std::to_string(workspace == nullptr ? 0 : bytes) +
                                  " bytes, expected " + std::to_string(info.workspace_bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    host::reject("workspace", "is not aligned to 256 bytes");
  }
}

host::Operands prepare(const Plan& plan, const Attention& problem, Pass pass, const void* workspace,
                       std::size_t workspace_bytes) {
  const detail::PlanImpl& impl = plan.impl();
  const host::Problem now = host::normalise(problem, pass);
  host::check_planned(impl.problem, now);
  host::check_device(now, impl.info, host::backend_for(now.device.type).device(now.device.index));
  check_workspace(impl.info, workspace, workspace_bytes);
  return host::bind(problem, now);
}

/// A result over some of the keys, by name.
struct State {
  const char *out_name, *lse_name;
  const TensorView &out, &lse;
};

/// out and lse of merge_states, or of one part, must have these extents.
void check_state(const State& s, const host::MergeProblem& p, bool packed) {
  if (packed) {
    host::check_shape(s.out_name, s.out, {p.rows, p.heads, p.dim_v}, "(total_q, heads_q, Dv)");
    host::check_shape(s.lse_name, s.lse, {p.heads, p.rows}, "(heads_q, total_q)");
  } else {
    host::check_shape(s.out_name, s.out, {p.batch, p.rows, p.heads, p.dim_v},
                      "(B, Sq, heads_q, Dv)");
    host::check_shape(s.lse_name, s.lse, {p.batch, p.heads, p.rows}, "(B, heads_q, Sq)");
  }
  host::check_dtype(s.out_name, s.out, p.dtype, "that of out");
  host::check_dtype(s.lse_name, s.lse, p.stats_dtype, "statistics");
  host::check_device(s.out_name, s.out, p.device, "out");
  host::check_device(s.lse_name, s.lse, p.device, "out");
  host::check_last_stride(s.out_name, s.out);
  host::check_memory(s.out_name, s.out);
  host::check_memory(s.lse_name, s.lse);
}

host::MergeProblem merge_problem(const TensorView& out) {
  const bool packed = out.ndim == 3;
  if (packed) {
    host::check_shape("out", out, {host::kAnyExtent, host::kAnyExtent, host::kAnyExtent},
                      "(total_q, heads_q, Dv)");
  } else {
    host::check_shape("out", out,
                      {host::kAnyExtent, host::kAnyExtent, host::kAnyExtent, host::kAnyExtent},
                      "(B, Sq, heads_q, Dv)");
  }
  host::check_floating("out", out);
  host::check_device_type("out", out);
  const std::size_t row = packed ? 0 : 1;
  host::MergeProblem p;
  p.dtype = out.dtype;
  p.stats_dtype = out.dtype == DType::float64 ? DType::float64 : DType::float32;
  p.device = out.device;
  p.batch = packed ? 1 : out.shape[0];
  p.rows = out.shape[row];
  p.heads = out.shape[row + 1];
  p.dim_v = out.shape[row + 2];
  return p;
}

/// "outs[3]", in the caller's memory: names are needed only when a check fails.
class PartName {
 public:
  PartName(const char* list, std::size_t index) {
    std::snprintf(text_, sizeof text_, "%s[%zu]", list, index);
  }
  operator const char*() const { return text_; }  // NOLINT(google-explicit-constructor)

 private:
  char text_[32];
};

Plan plan_for(const host::Problem& problem, const DeviceInfo& device) {
  auto impl = std::make_shared<detail::PlanImpl>();
  impl->problem = problem;
  impl->info = host::make_plan(problem, device);
  return Plan(std::move(impl));
}

}  // namespace

Plan plan(const Attention& problem, Pass pass, const DeviceInfo& device) {
  return plan_for(host::normalise(problem, pass), device);
}

Plan plan(const Attention& problem, Pass pass) {
  const host::Problem normal = host::normalise(problem, pass);
  return plan_for(normal, device_of(normal.device));
}

void forward(const Plan& plan, const Attention& problem, void* workspace,
             std::size_t workspace_bytes, Stream stream) {
  const host::Operands operands = prepare(plan, problem, Pass::forward, workspace, workspace_bytes);
  host::backend_for(problem.q.device.type).forward(plan.impl(), operands, workspace, stream);
}

void backward(const Plan& plan, const Attention& problem, void* workspace,
              std::size_t workspace_bytes, Stream stream) {
  const host::Operands operands =
      prepare(plan, problem, Pass::backward, workspace, workspace_bytes);
  host::backend_for(problem.q.device.type).backward(plan.impl(), operands, workspace, stream);
}

void merge_states(std::span<const TensorView> outs, std::span<const TensorView> lses,
                  const TensorView& out, const TensorView& lse, Stream stream) {
  if (outs.empty() || outs.size() > kMaxMergeParts) {
    host::reject("outs", "holds " + std::to_string(outs.size()) + " parts, expected 1 to " +
                             std::to_string(kMaxMergeParts));
  }
  if (lses.size() != outs.size()) {
    host::reject("lses", "holds " + std::to_string(lses.size()) + " parts, expected " +
                             std::to_string(outs.size()) + " as outs");
  }
  host::MergeProblem p = merge_problem(out);
  const bool packed = out.ndim == 3;
  check_state({"out", "lse", out, lse}, p, packed);
  host::check_writable("out", out);
  host::check_writable("lse", lse);
  const host::Region written[] = {host::region_of("out", out), host::region_of("lse", lse)};
  host::check_apart(written[0], written[1]);
  p.out = host::row_strides(out);
  p.lse = host::lse_strides(lse);
  std::array<host::MergePart, kMaxMergeParts> parts;
  for (std::size_t n = 0; n < outs.size(); ++n) {
    const PartName out_name("outs", n), lse_name("lses", n);
    check_state({out_name, lse_name, outs[n], lses[n]}, p, packed);
    for (const host::Region& output : written) {
      host::check_apart(output, host::region_of(out_name, outs[n]));
      host::check_apart(output, host::region_of(lse_name, lses[n]));
    }
    parts[n] = {outs[n].data, lses[n].data, host::row_strides(outs[n]), host::lse_strides(lses[n])};
  }
  host::backend_for(p.device.type, "out")
      .merge_states(p, std::span(parts.data(), outs.size()), out.data, lse.data, stream);
}

void dropout_mask(const TensorView& mask, double p, std::uint64_t seed, std::uint64_t offset,
                  Stream stream) {
  host::check_shape("mask", mask,
                    {host::kAnyExtent, host::kAnyExtent, host::kAnyExtent, host::kAnyExtent},
                    "(B, heads_q, Sq, Sk)");
  host::check_dtype("mask", mask, DType::uint8, "1 is kept, 0 is dropped");
  host::check_device_type("mask", mask);
  host::check_writable("mask", mask);
  host::check_memory("mask", mask);
  host::check_dropout("p", p);
  host::backend_for(mask.device.type, "mask")
      .dropout_mask(mask, host::dropout_threshold(p), seed, offset, stream);
}

}  // namespace onchip
