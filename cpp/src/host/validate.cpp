// SPDX-License-Identifier: Apache-2.0
// From the caller's `Attention` to the normalised `Problem`: every rule of the contract that can be
// checked without reading memory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "host/check.hpp"
#include "host/problem.hpp"

namespace onchip::host {
namespace {

__extension__ using Wide = __int128;

constexpr std::int64_t kMaxElements = std::int64_t{1}
                                      << 48;  // of q, k and v: sums of products stay below 2^63
constexpr double kLargest = 1e18;             // scale, softcap and their ratio fit into float32

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void read_numbers(const Options& o, Problem& p) {
  p.scale = o.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.dim)));
  if (!(std::abs(p.scale) <= kLargest)) {
    reject("scale", "is " + number_text(p.scale) + ", expected a number within +-1e18");
  }
  if (o.softcap != 0 && !(o.softcap >= 1 / kLargest && o.softcap <= kLargest)) {
    reject("softcap", "is " + number_text(o.softcap) + ", expected 0 (off) or 1e-18 to 1e18");
  }
  check_dropout("dropout_p", o.dropout_p);
  p.softcap = o.softcap;
  p.dropout_p = o.dropout_p;
}

void check_at_least(const char* name, std::int64_t value, std::int64_t least,
                    const char* expected) {
  if (value >= least) return;
  reject(name, "is " + std::to_string(value) + ", expected " + expected);
}

void read_options(const Options& o, Problem& p) {
  read_numbers(o, p);
  check_at_least("window_left", o.window_left, -1, "-1 (unlimited) or more");
  check_at_least("window_right", o.window_right, -1, "-1 (unlimited) or more");
  check_at_least("num_splits", o.num_splits, 0, "0 (the planner chooses) or more");
  check_at_least("split_size", o.split_size, 0, "0 (by num_splits) or more");
  check_at_least("max_seqlen_q", o.max_seqlen_q, 0, "0 (unknown) or more");
  check_at_least("max_seqlen_k", o.max_seqlen_k, 0, "0 (unknown) or more");
  if (o.softmax != Softmax::automatic && o.softmax != Softmax::safe) {
    reject("softmax", "is " + std::to_string(static_cast<std::int32_t>(o.softmax)) +
                          ", expected 0 (automatic) or 1 (safe)");
  }
  p.window_left = o.window_left;
  p.window_right = o.causal ? 0 : o.window_right;
  p.deterministic = o.deterministic;
  p.num_splits = p.pass == Pass::forward ? o.num_splits : 1;
  p.split_size = p.pass == Pass::forward ? o.split_size : 0;
  p.softmax = p.pass == Pass::forward ? o.softmax : Softmax::automatic;
}

void check_rows(const char* name, const TensorView& view, const Problem& p) {
  check_dtype(name, view, p.dtype, "that of q");
  check_device(name, view, p.device);
  check_last_stride(name, view);
  std::int64_t elements = 1;  // axes of no extent count as one: the others are multiplied as well
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.ndim); ++axis) {
    elements *= std::max<std::int64_t>(view.shape[axis], 1);
  }
  if (elements > kMaxElements) {
    reject(name, "shape " + shape_text(view) + " passes 2^48 elements");
  }
}

/// q, k and v: layout, extents and strides.
void read_inputs(const Attention& a, Problem& p) {
  p.packed = a.cu_seqlens_q.given();
  p.paged = a.block_table.given();
  if (a.q.ndim == 3 && !p.packed) reject("cu_seqlens_q", "not given, but q has 3 axes (packed)");
  if (p.packed) {
    check_shape("q", a.q, {kAnyExtent, kAnyExtent, kAnyExtent}, "(total_q, heads_q, D)");
  } else {
    check_shape("q", a.q, {kAnyExtent, kAnyExtent, kAnyExtent, kAnyExtent}, "(B, Sq, heads_q, D)");
  }
  const std::size_t row = p.packed ? 0 : 1;
  p.dtype = a.q.dtype;
  p.stats_dtype = p.dtype == DType::float64 ? DType::float64 : DType::float32;
  p.device = a.q.device;
  check_device_type("q", a.q);
  check_floating("q", a.q);
  p.heads_q = a.q.shape[row + 1];
  p.dim = a.q.shape[row + 2];
  if (p.heads_q < 1 || p.dim < 1)
    reject("q", "shape is " + shape_text(a.q) + ", expected at least one head and D >= 1");
  if (p.paged) {
    check_shape("k", a.k, {kAnyExtent, kAnyExtent, kAnyExtent, p.dim},
                "(pages, page_size, heads_kv, D)");
  } else if (p.packed) {
    check_shape("k", a.k, {kAnyExtent, kAnyExtent, p.dim}, "(total_k, heads_kv, D)");
  } else {
    check_shape("k", a.k, {a.q.shape[0], kAnyExtent, kAnyExtent, p.dim}, "(B, Sk, heads_kv, D)");
  }
  const auto head = static_cast<std::size_t>(a.k.ndim - 2);
  p.heads_kv = a.k.shape[head];
  if (p.heads_kv < 1 || p.heads_q % p.heads_kv != 0) {
    reject("k", "heads_kv " + std::to_string(p.heads_kv) + " does not divide heads_q " +
                    std::to_string(p.heads_q));
  }
  if (a.k.ndim == 4) {
    check_shape("v", a.v, {a.k.shape[0], a.k.shape[1], p.heads_kv, kAnyExtent},
                "k's with Dv for D");
  } else {
    check_shape("v", a.v, {a.k.shape[0], p.heads_kv, kAnyExtent}, "k's with Dv for D");
  }
  p.dim_v = a.v.shape[head + 1];
  if (p.dim_v < 1) reject("v", "shape is " + shape_text(a.v) + ", expected Dv >= 1");
  check_rows("q", a.q, p);
  check_rows("k", a.k, p);
  check_rows("v", a.v, p);
  p.q = row_strides(a.q);
  p.k = row_strides(a.k);
  p.v = row_strides(a.v);
}

/// An int32 array of the batch: its stride.
std::int64_t read_lengths(const char* name, const TensorView& view, std::int64_t entries,
                          const Problem& p, const char* meaning) {
  check_shape(name, view, {entries}, meaning);
  check_dtype(name, view, DType::int32, "lengths and tables");
  check_device(name, view, p.device);
  return stride_of(view, 0);
}

/// The greatest length that a hint (0: none) leaves possible.
std::int64_t longest(std::int64_t hint, std::int64_t total) {
  return hint > 0 ? std::min(hint, total) : total;
}

void read_packed_lengths(const Attention& a, Problem& p) {
  check_shape("cu_seqlens_q", a.cu_seqlens_q, {kAnyExtent}, "(B + 1,)");
  p.batch = a.cu_seqlens_q.shape[0] - 1;
  if (p.batch < 0) reject("cu_seqlens_q", "shape is (0,), expected (B + 1,)");
  if (Wide{p.batch} * p.heads_q > kMaxElements) {
    reject("cu_seqlens_q", "shape " + shape_text(a.cu_seqlens_q) + " with " +
                               std::to_string(p.heads_q) + " heads passes 2^48 sequences of heads");
  }
  p.cu_seqlens_q = read_lengths("cu_seqlens_q", a.cu_seqlens_q, p.batch + 1, p, "(B + 1,)");
  p.total_q = a.q.shape[0];
  p.hint_q = a.options.max_seqlen_q;
  p.seqlen_q = longest(p.hint_q, p.total_q);
  if (p.paged) return;
  p.has_cu_seqlens_k = true;
  p.cu_seqlens_k = read_lengths("cu_seqlens_k", a.cu_seqlens_k, p.batch + 1, p, "(B + 1,)");
  p.total_k = a.k.shape[0];
  p.seqlen_k = longest(a.options.max_seqlen_k, p.total_k);
}

void read_pages(const Attention& a, Problem& p) {
  if (p.pass == Pass::backward) {
    refuse("block_table",
           "backward over a paged cache is not supported by any backend; gather the pages into k "
           "and v");
  }
  if (a.cu_seqlens_k.given()) {
    reject("cu_seqlens_k", "given with block_table; seqused_k holds the lengths of a paged cache");
  }
  if (!a.seqused_k.given()) {
    reject("seqused_k", "not given, but block_table is; a paged cache needs the lengths");
  }
  check_shape("block_table", a.block_table, {p.batch, kAnyExtent}, "(B, max_pages)");
  check_dtype("block_table", a.block_table, DType::int32, "lengths and tables");
  check_device("block_table", a.block_table, p.device);
  p.num_pages = a.k.shape[0];
  p.page_size = a.k.shape[1];
  p.max_pages = a.block_table.shape[1];
  if (p.page_size < 1) reject("k", "page_size is 0, expected 1 or more");
  if (Wide{std::max<std::int64_t>(p.batch, 1)} * p.max_pages * p.page_size > kMaxElements) {
    reject("block_table", "shape " + shape_text(a.block_table) + " with pages of " +
                              std::to_string(p.page_size) + " keys passes 2^48 keys");
  }
  p.total_k = p.num_pages * p.page_size;
  p.seqlen_k = p.max_pages * p.page_size;
  p.block_table_batch = stride_of(a.block_table, 0);
  p.block_table_page = stride_of(a.block_table, 1);
}

/// Batch, lengths and pages.
void read_geometry(const Attention& a, Problem& p) {
  if (p.packed) {
    read_packed_lengths(a, p);
  } else {
    if (a.cu_seqlens_k.given() && !p.paged) reject("cu_seqlens_k", "given without cu_seqlens_q");
    p.batch = a.q.shape[0];
    p.seqlen_q = a.q.shape[1];
    p.total_q = p.batch * p.seqlen_q;
    p.seqlen_k = a.k.shape[1];
    p.total_k = p.batch * p.seqlen_k;
  }
  if (p.paged) read_pages(a, p);
  p.has_seqused_q = a.seqused_q.given();
  p.has_seqused_k = a.seqused_k.given();
  if (p.has_seqused_q) p.seqused_q = read_lengths("seqused_q", a.seqused_q, p.batch, p, "(B,)");
  if (p.has_seqused_k) p.seqused_k = read_lengths("seqused_k", a.seqused_k, p.batch, p, "(B,)");
}

/// bias[b, h, i, j]: each axis full or 1; broadcast axes get stride 0.
void read_bias(const TensorView& bias, Problem& p) {
  check_shape("bias", bias, {kAnyExtent, kAnyExtent, kAnyExtent, kAnyExtent},
              "(B|1, heads_q|1, Sq|1, Sk|1)");
  if (bias.dtype != p.dtype) check_dtype("bias", bias, p.stats_dtype, "or that of q");
  check_device("bias", bias, p.device);
  const std::int64_t full[4] = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  std::int64_t stride[4];
  for (std::size_t axis = 0; axis < 4; ++axis) {
    // In packed form the longest sequence is not known here: any extent may be it.
    const bool lengths = p.packed && axis >= 2;
    const std::int64_t extent = bias.shape[axis];
    if (extent != 1 && extent != full[axis] && !lengths) {
      reject("bias", "shape is " + shape_text(bias) + ", expected each axis of (" +
                         std::to_string(full[0]) + ", " + std::to_string(full[1]) + ", " +
                         std::to_string(full[2]) + ", " + std::to_string(full[3]) + ") or 1");
    }
    stride[axis] = stride_of(bias, axis);
  }
  p.bias_dtype = bias.dtype;
  p.bias = {stride[0], stride[1], stride[2], stride[3]};
  p.bias_shape = {bias.shape[0], bias.shape[1], bias.shape[2], bias.shape[3]};
}

void read_score_tensors(const Attention& a, Problem& p) {
  if (a.bias.given()) read_bias(a.bias, p);
  if (a.alibi_slopes.given()) {
    const bool per_batch = a.alibi_slopes.ndim == 2;
    if (per_batch) {
      check_shape("alibi_slopes", a.alibi_slopes, {p.batch, p.heads_q},
                  "(heads_q,) or (B, heads_q)");
    } else {
      check_shape("alibi_slopes", a.alibi_slopes, {p.heads_q}, "(heads_q,) or (B, heads_q)");
    }
    check_dtype("alibi_slopes", a.alibi_slopes, p.stats_dtype, "statistics");
    check_device("alibi_slopes", a.alibi_slopes, p.device);
    p.has_alibi = true;
    p.alibi_batch = per_batch ? stride_of(a.alibi_slopes, 0) : 0;
    p.alibi_head = stride_of(a.alibi_slopes, per_batch ? 1 : 0);
  }
  if (a.sinks.given()) {
    check_shape("sinks", a.sinks, {p.heads_q}, "(heads_q,)");
    check_dtype("sinks", a.sinks, p.stats_dtype, "statistics");
    check_device("sinks", a.sinks, p.device);
    p.has_sinks = true;
    p.sinks = stride_of(a.sinks, 0);
  }
}

/// A tensor of the shape of `like` with `dim` for its last extent.
Strides read_like(const char* name, const TensorView& view, const TensorView& like,
                  std::int64_t dim, const Problem& p, bool written, const char* meaning) {
  if (like.ndim == 3) {
    check_shape(name, view, {like.shape[0], like.shape[1], dim}, meaning);
  } else {
    check_shape(name, view, {like.shape[0], like.shape[1], like.shape[2], dim}, meaning);
  }
  check_rows(name, view, p);
  if (written) check_writable(name, view);
  return row_strides(view);
}

Strides read_lse(const char* name, const TensorView& view, const Problem& p, bool written) {
  if (p.packed) {
    check_shape(name, view, {p.heads_q, p.total_q}, "(heads_q, total_q)");
  } else {
    check_shape(name, view, {p.batch, p.heads_q, p.seqlen_q}, "(B, heads_q, Sq)");
  }
  check_dtype(name, view, p.stats_dtype, "statistics");
  check_device(name, view, p.device);
  if (written) check_writable(name, view);
  return lse_strides(view);
}

/// Every part of a split writes its own out and lse into the workspace.
void check_splits(const Problem& p) {
  const bool by_size = p.split_size > 0;
  const std::int64_t parts =
      by_size ? p.seqlen_k / p.split_size + 1 : std::min<std::int64_t>(p.num_splits, p.seqlen_k);
  if (parts <= 1 || Wide{parts} * (p.total_q + p.batch) * p.heads_q * (p.dim_v + 1) <= kMaxElements)
    return;
  reject(by_size ? "split_size" : "num_splits",
         "makes " + std::to_string(parts) + " parts, whose outputs pass 2^48 elements");
}

void read_forward(const Attention& a, Problem& p) {
  p.out = read_like("out", a.out, a.q, p.dim_v, p, true, "q's with Dv for D");
  p.has_lse = a.lse.given();
  if (p.has_lse) p.lse = read_lse("lse", a.lse, p, true);
  check_splits(p);
}

void read_backward(const Attention& a, Problem& p) {
  p.out = read_like("out", a.out, a.q, p.dim_v, p, false, "q's with Dv for D");
  p.dout = read_like("dout", a.dout, a.q, p.dim_v, p, false, "out's");
  p.dq = read_like("dq", a.dq, a.q, p.dim, p, true, "q's");
  p.dk = read_like("dk", a.dk, a.k, p.dim, p, true, "k's");
  p.dv = read_like("dv", a.dv, a.v, p.dim_v, p, true, "v's");
  p.has_lse = true;
  p.lse = read_lse("lse", a.lse, p, false);
  p.has_dlse = a.dlse.given();
  if (p.has_dlse) p.dlse = read_lse("dlse", a.dlse, p, false);
  p.has_dbias = a.dbias.given();
  if (p.has_dbias) {
    if (!a.bias.given()) reject("dbias", "given without bias");
    const auto& s = a.bias.shape;
    check_shape("dbias", a.dbias, {s[0], s[1], s[2], s[3]}, "bias's");
    check_dtype("dbias", a.dbias, p.bias_dtype, "that of bias");
    check_device("dbias", a.dbias, p.device);
    check_writable("dbias", a.dbias);
    p.dbias = {stride_of(a.dbias, 0), stride_of(a.dbias, 1), stride_of(a.dbias, 2),
               stride_of(a.dbias, 3)};
  }
  p.has_dsinks = a.dsinks.given();
  if (p.has_dsinks) {
    if (!a.sinks.given()) reject("dsinks", "given without sinks");
    check_shape("dsinks", a.dsinks, {p.heads_q}, "(heads_q,)");
    check_dtype("dsinks", a.dsinks, p.stats_dtype, "statistics");
    check_device("dsinks", a.dsinks, p.device);
    check_writable("dsinks", a.dsinks);
    p.dsinks = stride_of(a.dsinks, 0);
  }
}

}  // namespace

Strides row_strides(const TensorView& view) {
  if (view.ndim == 3) return {0, stride_of(view, 0), stride_of(view, 1)};
  return {stride_of(view, 0), stride_of(view, 1), stride_of(view, 2)};
}

Strides lse_strides(const TensorView& view) {
  if (view.ndim == 2) return {0, stride_of(view, 1), stride_of(view, 0)};
  return {stride_of(view, 0), stride_of(view, 2), stride_of(view, 1)};
}

void check_dropout(const char* name, double p) {
  if (p >= 0.0 && p < 1.0 && dropout_threshold(p) < 65536) return;
  reject(name, "is " + number_text(p) + ", expected 0 <= p < 1 with round(65536 p) below 65536");
}

std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(std::lround(65536.0 * p));
}

Problem normalise(const Attention& a, Pass pass) {
  Problem p;
  p.pass = pass;
  read_inputs(a, p);
  read_options(a.options, p);
  read_geometry(a, p);
  read_score_tensors(a, p);
  if (pass == Pass::forward) {
    read_forward(a, p);
  } else {
    read_backward(a, p);
  }
  return p;
}

}  // namespace onchip::host
