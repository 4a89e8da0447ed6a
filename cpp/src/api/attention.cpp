// SPDX-License-Identifier: Apache-2.0
// validate -> plan -> backend. Nothing is launched or written before every check has passed.
#include "onchip/attention.hpp"

#include <array>
#include <cstdint>
#include <string>

#include "host/backend.hpp"
#include "host/check.hpp"
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

/// The problem of this launch must be the one that was planned; says what differs.
void check_same(const host::Problem& planned, const host::Problem& now) {
  if (planned == now) return;
  const auto differs = [](const char* what) {
    host::reject("problem", std::string(what) + " differs from what was planned; make a new plan");
  };
  if (planned.pass != now.pass) differs("the pass (forward or backward)");
  if (!(planned.device == now.device)) differs("the device");
  if (planned.dtype != now.dtype || planned.bias_dtype != now.bias_dtype) differs("a dtype");
  if (planned.batch != now.batch || planned.seqlen_q != now.seqlen_q ||
      planned.seqlen_k != now.seqlen_k || planned.total_q != now.total_q ||
      planned.total_k != now.total_k || planned.heads_q != now.heads_q ||
      planned.heads_kv != now.heads_kv || planned.dim != now.dim || planned.dim_v != now.dim_v) {
    differs("a shape");
  }
  if (planned.scale != now.scale || planned.softcap != now.softcap ||
      planned.dropout_p != now.dropout_p || planned.window_left != now.window_left ||
      planned.window_right != now.window_right) {
    differs("an option");
  }
  differs("a stride, an option or a tensor's presence");
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
  check_same(impl.problem, now);
  const DeviceInfo& planned = impl.info.device;
  if (planned.type != now.device.type ||
      (planned.type == DeviceType::cuda && planned.memory_bytes == 0)) {
    host::reject("plan", "was made for " + planned.name + ", but q lies elsewhere");
  }
  check_workspace(impl.info, workspace, workspace_bytes);
  return host::bind(problem, now);
}

host::Strides packed_or_dense(const TensorView& view) {
  return view.ndim == 3 ? host::Strides{0, view.stride[0], view.stride[1]}
                        : host::Strides{view.stride[0], view.stride[1], view.stride[2]};
}

host::Strides lse_strides(const TensorView& view) {
  return view.ndim == 2 ? host::Strides{0, view.stride[1], view.stride[0]}
                        : host::Strides{view.stride[0], view.stride[2], view.stride[1]};
}

/// out and lse of merge_states, or of one part, must have these extents.
void check_state(const char* out_name, const TensorView& out, const char* lse_name,
                 const TensorView& lse, const host::MergeProblem& p, bool packed) {
  if (packed) {
    host::check_shape(out_name, out, {p.rows, p.heads, p.dim_v}, "(total_q, heads_q, Dv)");
    host::check_shape(lse_name, lse, {p.heads, p.rows}, "(heads_q, total_q)");
  } else {
    host::check_shape(out_name, out, {p.batch, p.rows, p.heads, p.dim_v}, "(B, Sq, heads_q, Dv)");
    host::check_shape(lse_name, lse, {p.batch, p.heads, p.rows}, "(B, heads_q, Sq)");
  }
  host::check_dtype(out_name, out, p.dtype, "that of out");
  host::check_dtype(lse_name, lse, p.stats_dtype, "statistics");
  host::check_device(out_name, out, p.device);
  host::check_device(lse_name, lse, p.device);
  host::check_last_stride(out_name, out);
  host::check_memory(out_name, out);
  host::check_memory(lse_name, lse);
}

host::MergeProblem merge_problem(const TensorView& out) {
  const bool packed = out.ndim == 3;
  if (!packed) {
    host::check_shape("out", out, {host::kAny, host::kAny, host::kAny, host::kAny},
                      "(B, Sq, heads_q, Dv)");
  }
  if (out.dtype != DType::float64 && out.dtype != DType::float32 && out.dtype != DType::float16 &&
      out.dtype != DType::bfloat16) {
    host::reject("out",
                 "dtype is " + std::string(name_of(out.dtype)) + ", expected a floating type");
  }
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

}  // namespace

Plan plan(const Attention& problem, Pass pass, const DeviceInfo& device) {
  auto impl = std::make_shared<detail::PlanImpl>();
  impl->problem = host::normalise(problem, pass);
  impl->info = host::make_plan(impl->problem, device);
  return Plan(std::move(impl));
}

Plan plan(const Attention& problem, Pass pass) {
  return plan(problem, pass, device_of(problem.q.device));
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
  constexpr std::size_t kMaxParts = 256;
  if (outs.empty() || outs.size() > kMaxParts) {
    host::reject("outs", "holds " + std::to_string(outs.size()) + " parts, expected 1 to 256");
  }
  if (lses.size() != outs.size()) {
    host::reject("lses", "holds " + std::to_string(lses.size()) + " parts, expected " +
                             std::to_string(outs.size()) + " as outs");
  }
  host::MergeProblem p = merge_problem(out);
  const bool packed = out.ndim == 3;
  check_state("out", out, "lse", lse, p, packed);
  host::check_writable("out", out);
  host::check_writable("lse", lse);
  p.out = packed_or_dense(out);
  p.lse = lse_strides(lse);
  std::array<host::MergePart, kMaxParts> parts;
  for (std::size_t n = 0; n < outs.size(); ++n) {
    check_state("outs", outs[n], "lses", lses[n], p, packed);
    parts[n] = {outs[n].data, lses[n].data, packed_or_dense(outs[n]), lse_strides(lses[n])};
  }
  host::backend_for(p.device.type)
      .merge_states(p, std::span(parts.data(), outs.size()), out.data, lse.data, stream);
}

void dropout_mask(const TensorView& mask, double p, std::uint64_t seed, std::uint64_t offset,
                  Stream stream) {
  host::check_shape("mask", mask, {host::kAny, host::kAny, host::kAny, host::kAny},
                    "(B, heads_q, Sq, Sk)");
  host::check_dtype("mask", mask, DType::uint8, "1 is kept, 0 is dropped");
  host::check_writable("mask", mask);
  host::check_memory("mask", mask);
  if (!(p >= 0.0 && p < 1.0))
    host::reject("p", "is " + std::to_string(p) + ", expected 0 <= p < 1");
  host::backend_for(mask.device.type)
      .dropout_mask(mask, host::dropout_threshold(p), seed, offset, stream);
}

}  // namespace onchip
