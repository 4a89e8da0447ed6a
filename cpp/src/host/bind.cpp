// SPDX-License-Identifier: Apache-2.0
// From a checked `Attention` to the pointers of one launch.
#include <array>
#include <initializer_list>
#include <span>

#include "host/check.hpp"
#include "host/problem.hpp"

namespace onchip::host {
namespace {

/// The tensors of one pass, those that it writes first.
class Tensors {
 public:
  Tensors(const Attention& a, Pass pass) {
    if (pass == Pass::forward) {
      add({{"out", &a.out}, {"lse", &a.lse}});
      written_ = count_;
    } else {
      add({{"dq", &a.dq},
           {"dk", &a.dk},
           {"dv", &a.dv},
           {"dbias", &a.dbias},
           {"dsinks", &a.dsinks}});
      written_ = count_;
      add({{"out", &a.out}, {"lse", &a.lse}, {"dout", &a.dout}, {"dlse", &a.dlse}});
    }
    add({{"q", &a.q},
         {"k", &a.k},
         {"v", &a.v},
         {"bias", &a.bias},
         {"alibi_slopes", &a.alibi_slopes},
         {"sinks", &a.sinks},
         {"cu_seqlens_q", &a.cu_seqlens_q},
         {"cu_seqlens_k", &a.cu_seqlens_k},
         {"seqused_q", &a.seqused_q},
         {"seqused_k", &a.seqused_k},
         {"block_table", &a.block_table}});
  }

  [[nodiscard]] std::span<const NamedView> all() const { return {tensors_.data(), count_}; }
  [[nodiscard]] std::span<const NamedView> written() const { return all().first(written_); }

 private:
  void add(std::initializer_list<NamedView> tensors) {
    for (const NamedView& tensor : tensors) {
      if (tensor.view->given()) tensors_[count_++] = tensor;
    }
  }

  std::array<NamedView, 20> tensors_;
  std::size_t count_ = 0, written_ = 0;
};

void* memory_of(const TensorView& view) { return view.given() ? view.data : nullptr; }

const std::int32_t* integers_of(const TensorView& view) {
  return static_cast<const std::int32_t*>(memory_of(view));
}

}  // namespace

Operands bind(const Attention& a, const Problem& p) {
  const Tensors tensors(a, p.pass);
  for (const NamedView& tensor : tensors.all()) check_memory(tensor.name, *tensor.view);
  for (const NamedView& output : tensors.written()) check_apart(output, tensors.all());

  Operands o;
  o.q = memory_of(a.q), o.k = memory_of(a.k), o.v = memory_of(a.v);
  o.bias = memory_of(a.bias);
  o.alibi_slopes = memory_of(a.alibi_slopes), o.sinks = memory_of(a.sinks);
  o.cu_seqlens_q = integers_of(a.cu_seqlens_q), o.cu_seqlens_k = integers_of(a.cu_seqlens_k);
  o.seqused_q = integers_of(a.seqused_q), o.seqused_k = integers_of(a.seqused_k);
  o.block_table = integers_of(a.block_table);
  o.out = memory_of(a.out), o.lse = memory_of(a.lse);
  o.seed = a.options.seed, o.offset = a.options.offset;
  if (p.pass == Pass::forward) return o;
  o.dout = memory_of(a.dout), o.dlse = memory_of(a.dlse);
  o.dq = memory_of(a.dq), o.dk = memory_of(a.dk), o.dv = memory_of(a.dv);
  o.dbias = memory_of(a.dbias), o.dsinks = memory_of(a.dsinks);
  return o;
}

}  // namespace onchip::host
