// SPDX-License-Identifier: Apache-2.0
// From the caller's `Attention` to the normalised `Problem`: every rule of the contract that can be
// checked without reading memory.
#include <cmath>
#include <string>

#include "host/check.hpp"
#include "host/problem.hpp"

namespace onchip::host {
namespace {

constexpr std::int64_t kMaxGpuDim = 256;

bool is_floating(DType dtype) {
  return dtype == DType::float64 || dtype == DType::float32 || dtype == DType::float16 ||
         dtype == DType::bfloat16;
}

/// Strides of a (batch, row, head, dim) tensor, or (row, head, dim) when packed.
Strides row_strides(const TensorView& view) {
  if (view.ndim == 3) return {0, view.stride[0], view.stride[1]};
  return {view.stride[0], view.stride[1], view.stride[2]};
}

/// Strides of lse: (batch, head, row), or (head, row) when packed.
Strides lse_strides(const TensorView& view) {
  if (view.ndim == 2) return {0, view.stride[1], view.stride[0]};
  return {view.stride[0], view.stride[2], view.stride[1]};
}

void check_finite(const char* name, double value) {
  if (!std::isfinite(value))
    reject(name, "is " + std::to_string(value) + ", expected a finite number");
}

void read_options(const Options& o, Problem& p) {
  p.scale = o.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.dim)));
  check_finite("scale", p.scale);
  check_finite("softcap", o.softcap);
  if (o.softcap < 0)
    reject("softcap", "is " + std::to_string(o.softcap) + ", expected 0 (off) or more");
  if (!(o.dropout_p >= 0.0 && o.dropout_p < 1.0) || dropout_threshold(o.dropout_p) >= 65536) {
    reject("dropout_p", "is " + std::to_string(o.dropout_p) +
                            ", expected 0 <= p < 1 with round(65536 p) below 65536");
  }
  const auto check_window = [](const char* name, std::int64_t value) {
    if (value < -1)
      reject(name, "is " + std::to_string(value) + ", expected -1 (unlimited) or more");
  };
  check_window("window_left", o.window_left);
  check_window("window_right", o.window_right);
  if (o.num_splits < 0) {
    reject("num_splits", "is " + std::to_string(o.num_splits) + ", expected 0 (automatic) or more");
  }
  if (o.split_size < 0)
    reject("split_size", "is " + std::to_string(o.split_size) + ", expected 0 or more");
  if (o.max_seqlen_q < 0) reject("max_seqlen_q", "is negative, expected 0 (unknown) or more");
  if (o.max_seqlen_k < 0) reject("max_seqlen_k", "is negative, expected 0 (unknown) or more");
  p.softcap = o.softcap;
  p.dropout_p = o.dropout_p;
  p.window_left = o.window_left;
  p.window_right = o.causal ? 0 : o.window_right;
  p.deterministic = o.deterministic;
  p.num_splits = p.pass == Pass::forward ? o.num_splits : 1;
  p.split_size = p.pass == Pass::forward ? o.split_size : 0;
}

void check_rows(const char* name, const TensorView& view, const Problem& p) {
  check_dtype(name, view, p.dtype, "that of q");
  check_device(name, view, p.device);
  check_last_stride(name, view);
}

/// q, k and v: layout, extents and strides.
void read_inputs(const Attention& a, Problem& p) {
  p.packed = a.cu_seqlens_q.given();
  p.paged = a.block_table.given();
  if (a.q.ndim == 3 && !p.packed) reject("cu_seqlens_q", "not given, but q has 3 axes (packed)");
  if (p.packed) {
    check_shape("q", a.q, {kAny, kAny, kAny}, "(total_q, heads_q, D)");
  } else {
    check_shape("q", a.q, {kAny, kAny, kAny, kAny}, "(B, Sq, heads_q, D)");
  }
  const std::size_t row = p.packed ? 0 : 1;
  p.dtype = a.q.dtype;
  p.stats_dtype = p.dtype == DType::float64 ? DType::float64 : DType::float32;
  p.device = a.q.device;
  if (!is_floating(p.dtype)) {
    reject("q", "dtype is " + std::string(name_of(p.dtype)) +
                    ", expected float32, float16, bfloat16 or float64");
  }
  p.heads_q = a.q.shape[row + 1];
  p.dim = a.q.shape[row + 2];
  if (p.heads_q < 1 || p.dim < 1)
    reject("q", "shape is " + shape_text(a.q) + ", expected at least one head and D >= 1");
  if (p.paged) {
    check_shape("k", a.k, {kAny, kAny, kAny, p.dim}, "(pages, page_size, heads_kv, D)");
  } else if (p.packed) {
    check_shape("k", a.k, {kAny, kAny, p.dim}, "(total_k, heads_kv, D)");
  } else {
    check_shape("k", a.k, {a.q.shape[0], kAny, kAny, p.dim}, "(B, Sk, heads_kv, D)");
  }
  const auto head = static_cast<std::size_t>(a.k.ndim - 2);
  p.heads_kv = a.k.shape[head];
  if (p.heads_kv < 1 || p.heads_q % p.heads_kv != 0) {
    reject("k", "heads_kv " + std::to_string(p.heads_kv) + " does not divide heads_q " +
                    std::to_string(p.heads_q));
  }
  if (a.k.ndim == 4) {
    check_shape("v", a.v, {a.k.shape[0], a.k.shape[1], p.heads_kv, kAny}, "k's with Dv for D");
  } else {
    check_shape("v", a.v, {a.k.shape[0], p.heads_kv, kAny}, "k's with Dv for D");
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
  return view.stride[0];
}

void read_packed_lengths(const Attention& a, Problem& p) {
  check_shape("cu_seqlens_q", a.cu_seqlens_q, {kAny}, "(B + 1,)");
  p.batch = a.cu_seqlens_q.shape[0] - 1;
  if (p.batch < 0) reject("cu_seqlens_q", "shape is (0,), expected (B + 1,)");
  p.cu_seqlens_q = read_lengths("cu_seqlens_q", a.cu_seqlens_q, p.batch + 1, p, "(B + 1,)");
  p.total_q = a.q.shape[0];
  p.seqlen_q = a.options.max_seqlen_q > 0 ? a.options.max_seqlen_q : p.total_q;
  if (p.paged) return;
  p.has_cu_seqlens_k = true;
  p.cu_seqlens_k = read_lengths("cu_seqlens_k", a.cu_seqlens_k, p.batch + 1, p, "(B + 1,)");
  p.total_k = a.k.shape[0];
  p.seqlen_k = a.options.max_seqlen_k > 0 ? a.options.max_seqlen_k : p.total_k;
}

/// Batch, lengths and pages.
void read_geometry(const Attention& a, Problem& p) {
  if (p.packed) {
    read_packed_lengths(a, p);
  } else {
    if (a.cu_seqlens_k.given()) reject("cu_seqlens_k", "given without cu_seqlens_q");
    p.batch = a.q.shape[0];
    p.seqlen_q = a.q.shape[1];
    p.total_q = p.batch * p.seqlen_q;
    p.seqlen_k = a.k.shape[1];
    p.total_k = p.batch * p.seqlen_k;
  }
  if (p.paged) {
    if (a.cu_seqlens_k.given())
      reject("cu_seqlens_k",
             "given with block_table; seqused_k holds the lengths of a paged cache");
    if (!a.seqused_k.given())
      reject("seqused_k", "not given, but block_table is; a paged cache needs the lengths");
    check_shape("block_table", a.block_table, {p.batch, kAny}, "(B, max_pages)");
    check_dtype("block_table", a.block_table, DType::int32, "lengths and tables");
    check_device("block_table", a.block_table, p.device);
    p.num_pages = a.k.shape[0];
    p.page_size = a.k.shape[1];
    p.max_pages = a.block_table.shape[1];
    if (p.page_size < 1) reject("k", "shape is " + shape_text(a.k) + ", expected page_size >= 1");
    p.total_k = p.num_pages * p.page_size;
    p.seqlen_k = p.max_pages * p.page_size;
    p.block_table_batch = a.block_table.stride[0];
    p.block_table_page = a.block_table.stride[1];
    if (p.pass == Pass::backward) {
      refuse("block_table",
             "backward over a paged cache is not supported by any backend; gather the pages into k "
             "and v");
    }
  }
  p.has_seqused_q = a.seqused_q.given();
  p.has_seqused_k = a.seqused_k.given();
  if (p.has_seqused_q) p.seqused_q = read_lengths("seqused_q", a.seqused_q, p.batch, p, "(B,)");
  if (p.has_seqused_k) p.seqused_k = read_lengths("seqused_k", a.seqused_k, p.batch, p, "(B,)");
}

/// bias[b, h, i, j]: each axis full or 1; broadcast axes get stride 0.
void read_bias(const TensorView& bias, Problem& p) {
  check_shape("bias", bias, {kAny, kAny, kAny, kAny}, "(B|1, heads_q|1, Sq|1, Sk|1)");
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
    stride[axis] = extent == 1 ? 0 : bias.stride[axis];
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
    p.alibi_batch = per_batch ? a.alibi_slopes.stride[0] : 0;
    p.alibi_head = a.alibi_slopes.stride[per_batch ? 1 : 0];
  }
  if (a.sinks.given()) {
    check_shape("sinks", a.sinks, {p.heads_q}, "(heads_q,)");
    check_dtype("sinks", a.sinks, p.stats_dtype, "statistics");
    check_device("sinks", a.sinks, p.device);
    p.has_sinks = true;
    p.sinks = a.sinks.stride[0];
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

void read_forward(const Attention& a, Problem& p) {
  p.out = read_like("out", a.out, a.q, p.dim_v, p, true, "q's with Dv for D");
  p.has_lse = a.lse.given();
  if (p.has_lse) p.lse = read_lse("lse", a.lse, p, true);
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
    const auto& stride = a.dbias.stride;
    p.dbias = {stride[0], stride[1], stride[2], stride[3]};
  }
  p.has_dsinks = a.dsinks.given();
  if (p.has_dsinks) {
    if (!a.sinks.given()) reject("dsinks", "given without sinks");
    check_shape("dsinks", a.dsinks, {p.heads_q}, "(heads_q,)");
    check_dtype("dsinks", a.dsinks, p.stats_dtype, "statistics");
    check_device("dsinks", a.dsinks, p.device);
    check_writable("dsinks", a.dsinks);
    p.dsinks = a.dsinks.stride[0];
  }
}

void check_gpu(const Problem& p) {
  if (p.device.type == DeviceType::cpu) return;
  if (p.dtype == DType::float64) refuse("q", "float64 is computed by the cpu backend only");
  const auto check_dim = [](const char* name, std::int64_t dim) {
    if (dim % 8 == 0 && dim <= kMaxGpuDim) return;
    refuse(name, "head dimension " + std::to_string(dim) +
                     " is computed by the cpu backend only; GPUs take multiples of 8 up to 256");
  };
  check_dim("q", p.dim);
  check_dim("v", p.dim_v);
}

}  // namespace

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
  check_gpu(p);
  return p;
}

Operands bind(const Attention& a, const Problem& p) {
  struct Named {
    const char* name;
    const TensorView& view;
  };
  for (const Named& t : {Named{"q", a.q},
                         {"k", a.k},
                         {"v", a.v},
                         {"bias", a.bias},
                         {"alibi_slopes", a.alibi_slopes},
                         {"sinks", a.sinks},
                         {"cu_seqlens_q", a.cu_seqlens_q},
                         {"cu_seqlens_k", a.cu_seqlens_k},
                         {"seqused_q", a.seqused_q},
                         {"seqused_k", a.seqused_k},
                         {"block_table", a.block_table},
                         {"out", a.out},
                         {"lse", a.lse}}) {
    check_memory(t.name, t.view);
  }
  Operands o;
  o.q = a.q.data, o.k = a.k.data, o.v = a.v.data;
  o.bias = a.bias.data, o.alibi_slopes = a.alibi_slopes.data, o.sinks = a.sinks.data;
  o.cu_seqlens_q = static_cast<const std::int32_t*>(a.cu_seqlens_q.data);
  o.cu_seqlens_k = static_cast<const std::int32_t*>(a.cu_seqlens_k.data);
  o.seqused_q = static_cast<const std::int32_t*>(a.seqused_q.data);
  o.seqused_k = static_cast<const std::int32_t*>(a.seqused_k.data);
  o.block_table = static_cast<const std::int32_t*>(a.block_table.data);
  o.out = a.out.data, o.lse = a.lse.given() ? a.lse.data : nullptr;
  o.seed = a.options.seed, o.offset = a.options.offset;
  if (p.pass == Pass::forward) return o;
  for (const Named& t : {Named{"dout", a.dout},
                         {"dlse", a.dlse},
                         {"dq", a.dq},
                         {"dk", a.dk},
                         {"dv", a.dv},
                         {"dbias", a.dbias},
                         {"dsinks", a.dsinks}}) {
    check_memory(t.name, t.view);
  }
  o.dout = a.dout.data, o.dlse = a.dlse.data;
  o.dq = a.dq.data, o.dk = a.dk.data, o.dv = a.dv.data;
  o.dbias = a.dbias.data, o.dsinks = a.dsinks.data;
  return o;
}

}  // namespace onchip::host
