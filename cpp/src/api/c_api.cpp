// SPDX-License-Identifier: Apache-2.0
// The C ABI over the C++ API: structs by their declared size, exceptions to status and message.
#include "onchip/onchip.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "onchip/attention.hpp"
#include "onchip/threads.hpp"

struct onchip_plan {
  explicit onchip_plan(onchip::Plan made) : plan(std::move(made)) {}

  onchip::Plan plan;
  // Made when first asked for: servers plan often and explain rarely.
  mutable std::once_flag explained, printed;
  mutable std::string explain, json;
};

namespace {

using onchip::Attention;
using onchip::Error;
using onchip::ErrorCode;
using onchip::TensorView;

static_assert(sizeof(onchip_tensor) == sizeof(TensorView));
static_assert(offsetof(onchip_tensor, data) == offsetof(TensorView, data));
static_assert(offsetof(onchip_tensor, dtype) == offsetof(TensorView, dtype));
static_assert(offsetof(onchip_tensor, device) == offsetof(TensorView, device));
static_assert(offsetof(onchip_tensor, ndim) == offsetof(TensorView, ndim));
static_assert(offsetof(onchip_tensor, shape) == offsetof(TensorView, shape));
static_assert(offsetof(onchip_tensor, stride) == offsetof(TensorView, stride));
static_assert(ONCHIP_MAX_DIMS == onchip::kMaxDims);
static_assert(ONCHIP_MAX_MERGE_PARTS == onchip::kMaxMergeParts);

std::string& last_error() {
  thread_local std::string message;
  return message;
}

onchip_status fail(onchip_status status, const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    return ONCHIP_OUT_OF_MEMORY;  // the old message stands
  }
  return status;
}

/// Runs `body`; what it throws becomes a status and this thread's message.
template <class Body>
onchip_status guard(Body body) noexcept {
  try {
    body();
    return ONCHIP_SUCCESS;
  } catch (const Error& error) {
    return fail(static_cast<onchip_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ONCHIP_OUT_OF_MEMORY, "host memory ran out");
  } catch (const std::exception& error) {
    return fail(ONCHIP_INTERNAL, error.what());
  } catch (...) {
    return fail(ONCHIP_INTERNAL, "unknown exception");
  }
}

[[noreturn]] void reject(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

template <class Pointer>
void check_pointer(const char* name, Pointer pointer) {
  if (pointer == nullptr) reject(std::string(name) + ": is NULL");
}

/// Where a struct of an older header may end: after `first` bytes and any number of `step`.
struct Ends {
  std::size_t first, step;
};

// All members of onchip_attention between v and softmax, the last, are tensors, and optional for
// some pass.
constexpr Ends kAttentionEnds{offsetof(onchip_attention, bias), sizeof(onchip_tensor)};
constexpr Ends kDeviceEnds{offsetof(onchip_device_info, bandwidth), sizeof(double)};
constexpr Ends kExecutorEnds{sizeof(onchip_executor), sizeof(std::int64_t)};

// No struct gets near this: a greater size is memory that nobody set.
constexpr std::size_t kMaxStructSize = 1 << 16;

[[noreturn]] void reject_size(const char* name, std::size_t size, std::size_t known) {
  reject(std::string(name) + ": struct_size is " + std::to_string(size) +
         ", expected the sizeof of the struct, here " + std::to_string(known));
}

/// `from` by its declared size over the defaults in `known`. What a newer header knows and this
/// library does not must be zero.
template <class Struct>
void read_struct(const char* name, const Struct* from, Ends ends, Struct& known) {
  check_pointer(name, from);
  const std::size_t size = from->struct_size;
  const bool cut = size < sizeof(Struct) && (size - ends.first) % ends.step != 0;
  if (size < ends.first || size > kMaxStructSize || cut) reject_size(name, size, sizeof(Struct));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  if (size > sizeof(Struct) && std::any_of(bytes + sizeof(Struct), bytes + size,
                                           [](unsigned char byte) { return byte != 0; })) {
    reject(std::string(name) + ": struct_size is " + std::to_string(size) +
           ", but this library knows " + std::to_string(sizeof(Struct)) +
           " bytes and the rest asks for something");
  }
  std::memcpy(&known, from, std::min(size, sizeof(Struct)));
}

/// `known` to the caller's struct, as much of it as the caller's header has, and zeros to the rest.
template <class Struct>
void write_struct(const char* name, const Struct& known, Struct* to, std::size_t size) {
  check_pointer(name, to);
  if (size < sizeof(std::size_t) || size > kMaxStructSize) reject_size(name, size, sizeof(Struct));
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &known, std::min(size, sizeof(Struct)));
  to->struct_size = size;
}

template <class Struct>
void write_struct(const char* name, const Struct& known, Struct* to) {
  check_pointer(name, to);
  write_struct(name, known, to, to->struct_size);
}

TensorView view_of(const onchip_tensor& tensor) {
  TensorView view;
  std::memcpy(static_cast<void*>(&view), &tensor, sizeof view);
  return view;
}

onchip_attention defaults() {
  onchip_attention args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.window_left = args.window_right = -1;
  args.num_splits = 1;
  return args;
}

onchip::Softmax softmax_of(onchip_softmax softmax) {
  if (softmax == ONCHIP_SOFTMAX_AUTOMATIC) return onchip::Softmax::automatic;
  if (softmax == ONCHIP_SOFTMAX_SAFE) return onchip::Softmax::safe;
  reject("softmax: is " + std::to_string(softmax) +
         ", expected ONCHIP_SOFTMAX_AUTOMATIC or ONCHIP_SOFTMAX_SAFE");
}

Attention attention_of(const onchip_attention* caller) {
  onchip_attention args = defaults();
  read_struct("args", caller, kAttentionEnds, args);
  Attention a;
  onchip::Options& o = a.options;
  if (args.has_scale != 0) o.scale = args.scale;
  o.causal = args.causal != 0;
  o.window_left = args.window_left, o.window_right = args.window_right;
  o.softcap = args.softcap, o.dropout_p = args.dropout_p;
  o.seed = args.seed, o.offset = args.offset;
  o.deterministic = args.deterministic != 0;
  o.num_splits = args.num_splits, o.split_size = args.split_size;
  o.max_seqlen_q = args.max_seqlen_q, o.max_seqlen_k = args.max_seqlen_k;
  o.softmax = softmax_of(args.softmax);
  a.q = view_of(args.q), a.k = view_of(args.k), a.v = view_of(args.v);
  a.bias = view_of(args.bias), a.alibi_slopes = view_of(args.alibi_slopes),
  a.sinks = view_of(args.sinks);
  a.cu_seqlens_q = view_of(args.cu_seqlens_q), a.cu_seqlens_k = view_of(args.cu_seqlens_k);
  a.seqused_q = view_of(args.seqused_q), a.seqused_k = view_of(args.seqused_k);
  a.block_table = view_of(args.block_table);
  a.out = view_of(args.out), a.lse = view_of(args.lse);
  a.dout = view_of(args.dout), a.dlse = view_of(args.dlse);
  a.dq = view_of(args.dq), a.dk = view_of(args.dk), a.dv = view_of(args.dv);
  a.dbias = view_of(args.dbias), a.dsinks = view_of(args.dsinks);
  return a;
}

onchip::Pass pass_of(onchip_pass pass) {
  if (pass == ONCHIP_FORWARD) return onchip::Pass::forward;
  if (pass == ONCHIP_BACKWARD) return onchip::Pass::backward;
  reject("pass: is " + std::to_string(pass) + ", expected ONCHIP_FORWARD or ONCHIP_BACKWARD");
}

onchip_device_info to_c(const onchip::DeviceInfo& info) {
  onchip_device_info c;
  std::memset(&c, 0, sizeof c);
  std::strncpy(c.name, info.name.c_str(), sizeof c.name - 1);
  c.type = static_cast<onchip_device_type>(info.type);
  c.index = info.index;
  c.compute_capability = info.compute_capability;
  c.units = info.units;
  c.on_chip_bytes = info.on_chip_bytes;
  c.l2_bytes = info.l2_bytes;
  c.memory_bytes = info.memory_bytes;
  c.bandwidth = info.bandwidth;
  c.flops_16bit = info.flops_16bit;
  c.flops_float32 = info.flops_float32;
  c.flops_float64 = info.flops_float64;
  c.family = info.family;
  return c;
}

onchip::DeviceInfo from_c(const onchip_device_info* caller) {
  onchip_device_info c;
  std::memset(&c, 0, sizeof c);
  read_struct("device", caller, kDeviceEnds, c);
  if (c.type != ONCHIP_CPU && c.type != ONCHIP_CUDA) {
    reject("device: type is " + std::to_string(c.type) + ", expected ONCHIP_CPU or ONCHIP_CUDA");
  }
  onchip::DeviceInfo info;
  info.name.assign(c.name, strnlen(c.name, sizeof c.name));
  info.type = static_cast<onchip::DeviceType>(c.type);
  info.index = c.index;
  info.compute_capability = c.compute_capability;
  info.units = c.units;
  info.on_chip_bytes = c.on_chip_bytes;
  info.l2_bytes = c.l2_bytes;
  info.memory_bytes = c.memory_bytes;
  info.bandwidth = c.bandwidth;
  info.flops_16bit = c.flops_16bit;
  info.flops_float32 = c.flops_float32;
  info.flops_float64 = c.flops_float64;
  info.family = static_cast<std::int32_t>(std::clamp<std::int64_t>(c.family, -1, INT32_MAX));
  return info;
}

onchip_cost to_c(const onchip::Cost& cost) {
  return {cost.flops,   cost.bytes_read, cost.bytes_written,        cost.intensity,
          cost.seconds, cost.peak_bytes, cost.compute_bound ? 1 : 0};
}

onchip_plan_info to_c(const onchip::PlanInfo& info) {
  onchip_plan_info c;
  std::memset(&c, 0, sizeof c);
  c.backend = info.backend.c_str();
  c.kernel = info.kernel.c_str();
  c.device = info.device.name.c_str();
  c.pass = static_cast<onchip_pass>(info.pass);
  c.stages = info.stages;
  c.warps = info.warps;
  c.threads = info.threads;
  c.tile_q = info.tile_q;
  c.tile_k = info.tile_k;
  c.on_chip_bytes = info.on_chip_bytes;
  c.grid = info.grid;
  c.num_splits = info.num_splits;
  c.split_size = info.split_size;
  c.workspace_bytes = info.workspace_bytes;
  c.cost = to_c(info.cost);
  c.standard = to_c(info.standard);
  return c;
}

template <class Make>
onchip_status create_plan(onchip_plan** plan, Make make) noexcept {
  return guard([&] {
    check_pointer("plan", plan);
    *plan = new onchip_plan(make());
  });
}

}  // namespace

extern "C" {

const char* onchip_last_error(void) { return last_error().c_str(); }
const char* onchip_version(void) { return ONCHIP_VERSION; }

onchip_status onchip_attention_init(onchip_attention* args, size_t struct_size) {
  return guard([&] { write_struct("args", defaults(), args, struct_size); });
}

onchip_status onchip_get_device_info(const char* name, onchip_device_info* info) {
  return guard([&] {
    check_pointer("name", name);
    write_struct("info", to_c(onchip::device_info(name)), info);
  });
}

const char* onchip_known_device(int32_t index) {
  try {
    static const std::vector<std::string> names = onchip::known_devices();
    return index >= 0 && static_cast<std::size_t>(index) < names.size()
               ? names[static_cast<std::size_t>(index)].c_str()
               : nullptr;
  } catch (...) {
    return nullptr;
  }
}

onchip_status onchip_plan_create(const onchip_attention* args, onchip_pass pass,
                                 onchip_plan** plan) {
  return create_plan(plan, [&] { return onchip::plan(attention_of(args), pass_of(pass)); });
}

onchip_status onchip_plan_create_for_device(const onchip_attention* args, onchip_pass pass,
                                            const onchip_device_info* device, onchip_plan** plan) {
  return create_plan(
      plan, [&] { return onchip::plan(attention_of(args), pass_of(pass), from_c(device)); });
}

void onchip_plan_destroy(onchip_plan* plan) { delete plan; }

size_t onchip_plan_workspace_bytes(const onchip_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}

onchip_status onchip_plan_get_info(const onchip_plan* plan, onchip_plan_info* info) {
  return guard([&] {
    check_pointer("plan", plan);
    write_struct("info", to_c(plan->plan.info()), info);
  });
}

onchip_status onchip_plan_explain(const onchip_plan* plan, const char** text) {
  return guard([&] {
    check_pointer("plan", plan);
    check_pointer("text", text);
    std::call_once(plan->explained, [&] { plan->explain = plan->plan.explain(); });
    *text = plan->explain.c_str();
  });
}

onchip_status onchip_plan_json(const onchip_plan* plan, const char** text) {
  return guard([&] {
    check_pointer("plan", plan);
    check_pointer("text", text);
    std::call_once(plan->printed, [&] { plan->json = plan->plan.json(); });
    *text = plan->json.c_str();
  });
}

onchip_status onchip_forward(const onchip_plan* plan, const onchip_attention* args, void* workspace,
                             size_t workspace_bytes, onchip_stream stream) {
  return guard([&] {
    check_pointer("plan", plan);
    onchip::forward(plan->plan, attention_of(args), workspace, workspace_bytes, {stream});
  });
}

onchip_status onchip_backward(const onchip_plan* plan, const onchip_attention* args,
                              void* workspace, size_t workspace_bytes, onchip_stream stream) {
  return guard([&] {
    check_pointer("plan", plan);
    onchip::backward(plan->plan, attention_of(args), workspace, workspace_bytes, {stream});
  });
}

onchip_status onchip_merge_states(const onchip_tensor* outs, const onchip_tensor* lses,
                                  size_t count, const onchip_tensor* out, const onchip_tensor* lse,
                                  onchip_stream stream) {
  return guard([&] {
    check_pointer("outs", outs);
    check_pointer("lses", lses);
    check_pointer("out", out);
    check_pointer("lse", lse);
    if (count > ONCHIP_MAX_MERGE_PARTS) {
      reject("outs: holds " + std::to_string(count) + " parts, expected 1 to " +
             std::to_string(ONCHIP_MAX_MERGE_PARTS));
    }
    std::array<TensorView, ONCHIP_MAX_MERGE_PARTS> out_views, lse_views;
    std::transform(outs, outs + count, out_views.begin(), view_of);
    std::transform(lses, lses + count, lse_views.begin(), view_of);
    onchip::merge_states({out_views.data(), count}, {lse_views.data(), count}, view_of(*out),
                         view_of(*lse), {stream});
  });
}

onchip_status onchip_dropout_mask(const onchip_tensor* mask, double p, uint64_t seed,
                                  uint64_t offset, onchip_stream stream) {
  return guard([&] {
    check_pointer("mask", mask);
    onchip::dropout_mask(view_of(*mask), p, seed, offset, {stream});
  });
}

onchip_status onchip_set_num_threads(int32_t count) {
  return guard([&] { onchip::set_num_threads(count); });
}
int32_t onchip_num_threads(void) {
  std::int32_t count = 1;
  guard([&] { count = onchip::num_threads(); });
  return count;
}

onchip_status onchip_set_executor(const onchip_executor* executor) {
  return guard([&] {
    if (executor == nullptr) {
      onchip::set_executor(nullptr);
      return;
    }
    onchip_executor known;
    std::memset(&known, 0, sizeof known);
    read_struct("executor", executor, kExecutorEnds, known);
    if (known.run == nullptr) reject("executor: run is NULL");
    if (known.concurrency < 1 || known.concurrency > INT32_MAX) {
      reject("executor: concurrency is " + std::to_string(known.concurrency) +
             ", expected 1 or more");
    }
    const onchip::Executor copy{known.run, known.self, static_cast<int32_t>(known.concurrency)};
    onchip::set_executor(&copy);
  });
}

const char* onchip_cpu_isa(void) {
  const char* name = "unknown";
  guard([&] { name = onchip::cpu_isa(); });
  return name;
}

}  // extern "C"
