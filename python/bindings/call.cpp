// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string_view>

#include "onchip/threads.hpp"
#include "options.hpp"

namespace onchip::python {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;
constexpr std::size_t kCachedPlans = 32;
constexpr std::size_t kUsualArrays = 4;  // q, k, v and out

/// What a field may hold, relative to q's dtype.
enum class Role { query, like_q, statistics, bias, index };

struct Field {
  const char* name;
  TensorView Attention::* member;
  Role role;
};

constexpr Field kFields[] = {
    {"q", &Attention::q, Role::query},
    {"k", &Attention::k, Role::like_q},
    {"v", &Attention::v, Role::like_q},
    {"out", &Attention::out, Role::like_q},
    {"lse", &Attention::lse, Role::statistics},
    {"bias", &Attention::bias, Role::bias},
    {"alibi_slopes", &Attention::alibi_slopes, Role::statistics},
    {"sinks", &Attention::sinks, Role::statistics},
    {"cu_seqlens_q", &Attention::cu_seqlens_q, Role::index},
    {"cu_seqlens_k", &Attention::cu_seqlens_k, Role::index},
    {"seqused_q", &Attention::seqused_q, Role::index},
    {"seqused_k", &Attention::seqused_k, Role::index},
    {"block_table", &Attention::block_table, Role::index},
    {"dout", &Attention::dout, Role::like_q},
    {"dlse", &Attention::dlse, Role::statistics},
    {"dq", &Attention::dq, Role::like_q},
    {"dk", &Attention::dk, Role::like_q},
    {"dv", &Attention::dv, Role::like_q},
    {"dbias", &Attention::dbias, Role::bias},
    {"dsinks", &Attention::dsinks, Role::statistics},
};

const Field& field_named(const char* name) {
  for (const Field& field : kFields) {
    if (std::strcmp(field.name, name) == 0) return field;
  }
  throw nb::key_error(name);
}

DType statistics_of(DType q) { return q == DType::float64 ? DType::float64 : DType::float32; }

bool dtype_fits(DType found, Role role, DType q) {
  switch (role) {
    case Role::query: return found != DType::int32 && found != DType::uint8;
    case Role::like_q: return found == q;
    case Role::statistics: return found == statistics_of(q);
    case Role::bias: return found == q || found == statistics_of(q);
    case Role::index: return found == DType::int32;
  }
  return false;
}

std::string fitting_dtypes(Role role, DType q) {
  const std::string of_q = name_of(q), statistics = name_of(statistics_of(q));
  const std::string beside = " beside a q of " + of_q;
  switch (role) {
    case Role::query: return "float64, float32, float16 or bfloat16";
    case Role::like_q: return of_q + ", that of q";
    case Role::statistics: return statistics + beside;
    case Role::bias: return (of_q == statistics ? of_q : of_q + " or " + statistics) + beside;
    case Role::index: return "int32";
  }
  return {};
}

void check_dtype(const Tensor& tensor, Role role, DType q) {
  const DType found = tensor.view.dtype;
  if (dtype_fits(found, role, q)) return;
  throw nb::type_error(
      (tensor.name + ": dtype " + name_of(found) + ", expected " + fitting_dtypes(role, q))
          .c_str());
}

bool same_layout(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.device == b.device && a.ndim == b.ndim && a.shape == b.shape &&
         a.stride == b.stride;
}

/// Whether one plan serves both: all that planning looks at is equal.
bool same_question(const Attention& a, const Attention& b) {
  const Options &x = a.options, &y = b.options;
  return std::ranges::all_of(
             kFields, [&](const Field& f) { return same_layout(a.*f.member, b.*f.member); }) &&
         x.scale == y.scale && x.causal == y.causal && x.window_left == y.window_left &&
         x.window_right == y.window_right && x.softcap == y.softcap && x.dropout_p == y.dropout_p &&
         x.deterministic == y.deterministic && x.num_splits == y.num_splits &&
         x.split_size == y.split_size && x.max_seqlen_q == y.max_seqlen_q &&
         x.max_seqlen_k == y.max_seqlen_k && x.softmax == y.softmax;
}

/// Plans of the last few questions, most recent first.
class PlanCache {
 public:
  Plan find(const Attention& attention, Pass pass) {
    const std::lock_guard lock(mutex_);
    const std::int32_t threads = num_threads();
    const auto hit = std::ranges::find_if(entries_, [&](const Entry& entry) {
      return entry.pass == pass && entry.threads == threads &&
             same_question(entry.attention, attention);
    });
    if (hit != entries_.end()) {
      std::rotate(entries_.begin(), hit, hit + 1);
    } else {
      Plan made = plan(attention, pass);
      if (entries_.size() == kCachedPlans) entries_.pop_back();
      entries_.insert(entries_.begin(), Entry{attention, pass, threads, std::move(made)});
    }
    return entries_.front().plan;
  }

 private:
  struct Entry {
    Attention attention;
    Pass pass;
    std::int32_t threads;
    Plan plan;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

PlanCache& plan_cache() {
  static PlanCache cache;
  return cache;
}

/// `bytes`, and what it takes to align them.
std::size_t room_for(std::size_t bytes) { return bytes == 0 ? 0 : bytes + kWorkspaceAlignment - 1; }

void* aligned(void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) & ~(kWorkspaceAlignment - 1));
}

Stream stream_of(std::uintptr_t handle) { return {reinterpret_cast<void*>(handle)}; }

std::vector<TensorView> views_of(const std::vector<Tensor>& tensors, const Tensor& lead,
                                 Role role) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    check_dtype(tensor, role, lead.view.dtype);
    views.push_back(tensor.view);
  }
  return views;
}

void merge(const std::vector<Tensor>& outs, const std::vector<Tensor>& lses, const Tensor& out,
           const Tensor& lse, std::uintptr_t stream) {
  if (outs.empty()) throw nb::value_error("outs: no part, expected at least one");
  check_dtype(outs.front(), Role::query, DType::none);
  const std::vector<TensorView> out_views = views_of(outs, outs.front(), Role::like_q);
  const std::vector<TensorView> lse_views = views_of(lses, outs.front(), Role::statistics);
  const nb::gil_scoped_release release;
  merge_states(out_views, lse_views, out.view, lse.view, stream_of(stream));
}

}  // namespace

void Call::set(const char* name, const Tensor& tensor, bool write) {
  const Field& field = field_named(name);
  if (write && tensor.read_only) {
    throw nb::value_error((tensor.name + ": is read-only, expected memory to write to").c_str());
  }
  check_dtype(tensor, field.role, attention_.q.dtype);
  if (write) check_apart(tensor);
  attention_.*field.member = tensor.view;
  given_.reserve(kUsualArrays);
  given_.push_back({field.name, tensor});
}

void Call::set_qkv(const Tensor& q, const Tensor& k, const Tensor& v, std::int32_t axes,
                   const char* described) {
  set("q", q, false);
  set("k", k, false);
  set("v", v, false);
  for (const Tensor* tensor : {&q, &k, &v}) {
    if (tensor->view.ndim == axes) continue;
    throw nb::value_error(
        (tensor->name + ": " + std::to_string(tensor->view.ndim) + " axes, expected " + described)
            .c_str());
  }
}

nb::tuple Call::out_shape() const {
  if (attention_.q.ndim == 0) throw nb::value_error("out_shape: set_qkv() comes first");
  const auto last = static_cast<std::size_t>(attention_.q.ndim - 1);
  std::array<std::int64_t, kMaxDims> shape = attention_.q.shape;
  shape[last] = attention_.v.shape[last];
  return tuple_of(shape, attention_.q.ndim);
}

/// Catches out=q. Outputs between the elements of an input (slices of one array) are fine.
void Call::check_apart(const Tensor& written) const {
  if (written.view.data == nullptr) return;
  for (const Given& given : given_) {
    if (given.tensor.view.data != written.view.data) continue;
    throw nb::value_error((written.name + ": shares memory with " + given.tensor.name +
                           ", expected an array of its own")
                              .c_str());
  }
}

std::size_t Call::prepare() {
  try {
    plan_ = plan_cache().find(attention_, pass_);
  } catch (const Error& error) {
    rethrow(error);
  }
  return room_for(plan_->workspace_bytes());
}

bool Call::allocate(nb::handle exchange) {
  if (!plan_) throw nb::value_error("allocate: prepare() comes first");
  const auto room = static_cast<std::int64_t>(room_for(plan_->workspace_bytes()));
  workspace_ = python::allocate("workspace", room, attention_.q.device, exchange);
  if (workspace_->view.data == nullptr) workspace_.reset();
  return workspace_.has_value();
}

Plan Call::plan_for(const std::optional<DeviceInfo>& device) const {
  try {
    return device ? plan(attention_, pass_, *device) : plan(attention_, pass_);
  } catch (const Error& error) {
    rethrow(error);
  }
}

void Call::run(const Tensor* workspace, std::uintptr_t stream) {
  if (!plan_) throw nb::value_error("run: prepare() comes first");
  const std::size_t needed = plan_->workspace_bytes();
  void* memory = nullptr;
  if (needed > 0) {
    if (workspace == nullptr && workspace_) workspace = &*workspace_;
    if (workspace == nullptr ||
        static_cast<std::size_t>(workspace->view.shape[0]) < room_for(needed)) {
      throw nb::value_error("workspace: smaller than prepare() returned");
    }
    memory = aligned(workspace->view.data);
  }
  try {
    const nb::gil_scoped_release release;
    if (pass_ == Pass::forward) {
      forward(*plan_, attention_, memory, needed, stream_of(stream));
    } else {
      backward(*plan_, attention_, memory, needed, stream_of(stream));
    }
  } catch (const Error& error) {
    rethrow(error);
  }
}

/// Messages begin with the argument's name; where the Python function calls it otherwise
/// (decode's k is k_cache), so must the message.
void Call::rethrow(const Error& error) const {
  const std::string_view message = error.what();
  const std::string_view name = message.substr(0, message.find_first_of(":[ "));
  for (const Given& given : given_) {
    if (name == given.field && given.tensor.name != given.field) {
      throw Error(error.code(), given.tensor.name + std::string(message.substr(name.size())));
    }
  }
  throw error;
}

void bind_call(nb::module_& m) {
  nb::class_<Call>(m, "Call", "One call of the C++ API, put together argument by argument.")
      .def(nb::init<bool>(), nb::arg("backward"))
      .def(
          "options",
          [](Call& call, nb::handle scale, nb::handle causal, nb::handle window, nb::handle softcap,
             nb::handle dropout_p, nb::handle seed, nb::handle offset, nb::handle max_seqlen_q,
             nb::handle max_seqlen_k, nb::handle softmax, bool deterministic,
             std::int32_t num_splits, std::int64_t split_size) {
            Options options = read_options({scale, causal, window, softcap, dropout_p, seed, offset,
                                            max_seqlen_q, max_seqlen_k, softmax});
            options.deterministic = deterministic;
            options.num_splits = num_splits;
            options.split_size = split_size;
            call.set_options(options);
          },
          nb::arg("scale").none(), nb::arg("causal").none(), nb::arg("window").none(),
          nb::arg("softcap").none(), nb::arg("dropout_p").none(), nb::arg("seed").none(),
          nb::arg("offset").none(), nb::arg("max_seqlen_q").none(), nb::arg("max_seqlen_k").none(),
          nb::arg("softmax").none(), nb::arg("deterministic"), nb::arg("num_splits"),
          nb::arg("split_size"))
      .def("set", &Call::set, nb::arg("field"), nb::arg("tensor"), nb::arg("write") = false)
      .def("set_qkv", &Call::set_qkv, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("axes"),
           nb::arg("described"))
      .def("out_shape", &Call::out_shape)
      .def("prepare", &Call::prepare)
      .def("allocate", &Call::allocate, nb::arg("exchange"))
      .def("plan", &Call::plan_for, nb::arg("device").none() = nb::none())
      .def("run", &Call::run, nb::arg("workspace").none(), nb::arg("stream"));

  m.def("merge_states", &merge, nb::arg("outs"), nb::arg("lses"), nb::arg("out"), nb::arg("lse"),
        nb::arg("stream"));
  m.def(
      "dropout_mask",
      [](const Tensor& mask, double p, std::uint64_t seed, std::uint64_t offset,
         std::uintptr_t stream) {
        const nb::gil_scoped_release release;
        dropout_mask(mask.view, p, seed, offset, stream_of(stream));
      },
      nb::arg("mask"), nb::arg("p"), nb::arg("seed"), nb::arg("offset"), nb::arg("stream"));
}

}  // namespace onchip::python
