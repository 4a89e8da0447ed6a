// SPDX-License-Identifier: Apache-2.0
// From a checked `Attention` to the pointers of one launch.
#include <array>
#include <cstddef>
#include <cstdint>

#include "host/check.hpp"
#include "host/problem.hpp"

namespace onchip::host {
namespace {

/// The memory of one pass, what it writes first.
class Memory {
 public:
  Memory(const Attention& a, Pass pass) {
    if (pass == Pass::forward) {
      add("out", a.out);
      add("lse", a.lse);
      written_ = count_;
    } else {
      add("dq", a.dq);
      add("dk", a.dk);
      add("dv", a.dv);
      add("dbias", a.dbias);
      add("dsinks", a.dsinks);
      written_ = count_;
      add("out", a.out);
      add("lse", a.lse);
      add("dout", a.dout);
      add("dlse", a.dlse);
    }
    add("q", a.q);
    add("k", a.k);
    add("v", a.v);
    add("bias", a.bias);
    add("alibi_slopes", a.alibi_slopes);
    add("sinks", a.sinks);
    add("cu_seqlens_q", a.cu_seqlens_q);
    add("cu_seqlens_k", a.cu_seqlens_k);
    add("seqused_q", a.seqused_q);
    add("seqused_k", a.seqused_k);
    add("block_table", a.block_table);
  }

  void check_apart() const {
    for (std::size_t output = 0; output < written_; ++output) {
      for (std::size_t other = output + 1; other < count_; ++other) {
        host::check_apart(regions_[output], regions_[other]);
      }
    }
  }

 private:
  void add(const char* name, const TensorView& view) {
    if (!view.given()) return;
    check_memory(name, view);
    regions_[count_++] = region_of(name, view);
  }

  std::array<Region, 20> regions_;
  std::size_t count_ = 0, written_ = 0;
};

void* memory_of(const TensorView& view) { return view.given() ? view.data : nullptr; }

const std::int32_t* integers_of(const TensorView& view) {
  return static_cast<const std::int32_t*>(memory_of(view));
}

}  // namespace

Operands bind(const Attention& a, const Problem& p) {
  Memory(a, p.pass).check_apart();

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
