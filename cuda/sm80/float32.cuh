// SPDX-License-Identifier: Apache-2.0
// float32 inputs on the plain float32 units: the tensor cores round float32 to tf32, which breaks
// the error bound. One warp computes one row, its lanes share the head dimension. Right first:
// these are many times slower than the 16-bit kernels. Any alignment.
//
// Scores stay in the natural base and are rounded no further: what enters exp is their distance
// from the row's maximum or lse, which is small where the weight is not.
#pragma once

#include <cstdint>

#include "common/options.cuh"
#include "common/row_work.cuh"
#include "common/work.cuh"
#include "host/kernel_params.hpp"
#include "host/sequence.hpp"
#include "prims/math.cuh"

namespace onchip::cuda::sm80 {

inline constexpr int kLaneValues = 8;           // of a row of up to 256
inline constexpr float kLseRounding = 2.4e-7F;  // 4 roundings of a float32, relative

/// A row spread over the lanes of a warp: lane l holds elements l, l + 32, ...
struct LaneRow {
  float x[kLaneValues];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& value : x) value = 0.0F;
  }
  __device__ __forceinline__ void load(const float* from, int dim) {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      const int e = static_cast<int>(threadIdx.x) % 32 + 32 * i;
      x[i] = e < dim ? from[e] : 0.0F;
    }
  }
  [[nodiscard]] __device__ __forceinline__ float dot(const LaneRow& other) const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) sum = fmaf(x[i], other.x[i], sum);
    return warp_sum(sum);
  }
  __device__ __forceinline__ void add(float weight, const LaneRow& other) {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) x[i] = fmaf(weight, other.x[i], x[i]);
  }
  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (float& value : x) value *= factor;
  }
};

/// A sum of any number of rows: in float32 by parts of kPart, which are added up in float64.
struct LaneSum {
  static constexpr int kPart = 64;
  double whole[kLaneValues] = {};
  LaneRow part;
  int count = 0;

  __device__ __forceinline__ LaneSum() { part.clear(); }
  __device__ __forceinline__ void add(float weight, const LaneRow& row) {
    part.add(weight, row);
    if (++count == kPart) close();
  }
  __device__ __forceinline__ void close() {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) whole[i] += part.x[i];
    part.clear();
    count = 0;
  }
  __device__ __forceinline__ void scale(float factor) {
    part.scale(factor);
#pragma unroll
    for (double& value : whole) value *= factor;
  }
  __device__ __forceinline__ void store(float* to, int dim, double factor) {
    close();
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      const int e = static_cast<int>(threadIdx.x) % 32 + 32 * i;
      if (e < dim) to[e] = static_cast<float>(whole[i] * factor);
    }
  }
};

/// The row as a tile of one, as the options and KeyRows want it.
__device__ __forceinline__ QueryWork as_work(const host::Problem& p, const QueryRow& at) {
  QueryWork work;
  work.sequence = at.sequence;
  work.head = at.head;
  work.kv_head = at.head / static_cast<int>(p.heads_q / p.heads_kv);
  work.first = static_cast<int>(at.position);
  work.rows = 1;
  return work;
}

/// Factor of a weight: 0 where dropout drops it, else 1 / (1 - p).
__device__ __forceinline__ float kept_factor(const host::KernelParams& params,
                                             const RowOptions& row, int j) {
  if (params.dropout_threshold == 0) return 1.0F;
  const std::uint32_t word = dropout_word(params, row, j / 8, j % 8 / 2);
  const std::uint32_t draw = j % 2 == 0 ? word & 0xffffU : word >> 16;
  return draw < params.dropout_threshold ? 0.0F : params.kept_scale;
}

/// Forward: one warp a (row, head, split). Keys in rising order.
inline __global__ void float32_forward(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const std::int64_t number =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  QueryRow at;
  if (!at.find(params, number / params.num_splits)) return;
  const auto split = static_cast<int>(number % params.num_splits);
  const int dim = static_cast<int>(p.dim);
  const int dim_v = static_cast<int>(p.dim_v);
  LaneSum o;
  float m = -kInfinity;
  double l = 0.0;
  if (at.counts()) {
    const QueryWork work = as_work(p, at);
    const RowOptions row(params, work, 0);
    const host::KeyRange keys = host::key_bounds(p, at.sequence, at.position);
    const auto lo = static_cast<int>(max(keys.lo, split * params.split_size));
    // Lengths are on the device: the last part takes what a hint has left out.
    const bool last = split + 1 == params.num_splits;
    const auto hi =
        static_cast<int>(last ? keys.hi : min(keys.hi, (split + 1) * params.split_size));
    const KeyRows<float> k_rows(params, params.operands.k, p.k, at.sequence, work.kv_head);
    const KeyRows<float> v_rows(params, params.operands.v, p.v, at.sequence, work.kv_head);
    LaneRow q;
    q.load(static_cast<const float*>(params.operands.q) + at.offset(p.q), dim);
    for (int j = lo; j < hi; ++j) {
      LaneRow k;
      LaneRow v;
      k.load(k_rows(j), dim);
      v.load(v_rows(j), dim_v);
      float slope;
      const float s = natural_score(params, row, j, static_cast<float>(p.scale), q.dot(k), slope);
      const float top = fmaxf(m, s);
      const float base = top == -kInfinity ? 0.0F : top;
      const float alpha = expf(m - base);
      const float weight = expf(s - base);
      l = l * alpha + weight;
      if (alpha != 1.0F) o.scale(alpha);
      o.add(weight * kept_factor(params, row, j), v);
      m = top;
    }
  }
  const bool sees_nothing = l == 0.0;
  if (p.has_sinks && params.num_splits == 1 && !sees_nothing) {
    const float sink = static_cast<const float*>(params.operands.sinks)[at.head * p.sinks];
    const float top = fmaxf(m, sink);
    o.scale(expf(m - top));
    l = l * expf(m - top) + expf(sink - top);
    m = top;
  }
  if (sees_nothing) o = LaneSum();
  const double factor = sees_nothing ? 0.0 : 1.0 / l;
  const double exact = m + log(l);
  const float lse = sees_nothing ? -kInfinity : static_cast<float>(exact);
  const bool leader = threadIdx.x % 32 == 0;
  if (params.num_splits > 1) {
    const std::int64_t to = (split * p.total_q + at.row) * p.heads_q + at.head;
    o.store(params.partial_out + to * dim_v, dim_v, factor);
    if (leader) {
      params.partial_lse[to] = lse;
      params.lse_rest[to] = sees_nothing ? 0.0F : static_cast<float>(exact - lse);
    }
    return;
  }
  o.store(static_cast<float*>(params.operands.out) + at.offset(p.out), dim_v, factor);
  if (leader && params.operands.lse != nullptr) {
    static_cast<float*>(params.operands.lse)[at.offset(p.lse)] = lse;
  }
}

/// Before the backward pass: lse_rest, the digits that lse has lost in being a float32. Where the
/// weights of this call's keys add up to 1 but for what rounding lse explains, P is divided by
/// their sum. Else lse counts more than these keys and is taken as it is. One warp a row and head,
/// over any number of blocks.
inline __global__ void float32_lse_rest(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const std::int64_t rows = p.total_q * p.heads_q;
  std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  for (; number < rows; number += static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock) {
    QueryRow at;
    at.find(params, number);
    const std::int64_t statistics = at.head * p.total_q + at.row;
    const float lse = params.lse2[statistics];
    if (!at.counts() || lse == kInfinity) continue;
    const QueryWork work = as_work(p, at);
    const RowOptions row(params, work, 0);
    const host::KeyRange keys = host::key_bounds(p, at.sequence, at.position);
    const KeyRows<float> k_rows(params, params.operands.k, p.k, at.sequence, work.kv_head);
    LaneRow q;
    q.load(static_cast<const float*>(params.operands.q) + at.offset(p.q), static_cast<int>(p.dim));
    double sum = 0.0;
    for (auto j = static_cast<int>(keys.lo); j < keys.hi; ++j) {
      LaneRow k;
      k.load(k_rows(j), static_cast<int>(p.dim));
      float slope;
      sum +=
          expf(natural_score(params, row, j, static_cast<float>(p.scale), q.dot(k), slope) - lse);
    }
    if (p.has_sinks) {
      sum += expf(static_cast<const float*>(params.operands.sinks)[at.head * p.sinks] - lse);
    }
    const auto rest = static_cast<float>(log(sum));
    const bool rounding = fabsf(rest) <= kLseRounding * fmaxf(1.0F, fabsf(lse));
    if (rounding && threadIdx.x % 32 == 0) params.lse_rest[statistics] = rest;
  }
}

/// What the backward pass knows of a row: lse, +inf where the row sees nothing, and delta.
struct RowStatistics {
  float lse, rest, delta;

  __device__ __forceinline__ RowStatistics(const host::KernelParams& params, std::int64_t at)
      : lse(params.lse2[at]), rest(params.lse_rest[at]), delta(params.delta[at]) {}
  [[nodiscard]] __device__ __forceinline__ bool sees_nothing() const { return lse == kInfinity; }
};

/// P and dS of one pair: dS is the gradient in the softmax's argument.
struct PairGradient {
  float weight, ds, slope;

  __device__ __forceinline__ PairGradient(const host::KernelParams& params, const RowOptions& row,
                                          int j, float qk, float dp,
                                          const RowStatistics& statistics) {
    const float s =
        natural_score(params, row, j, static_cast<float>(params.problem.scale), qk, slope);
    const float factor = kept_factor(params, row, j);
    const float p = expf((s - statistics.lse) - statistics.rest);
    weight = p * factor;
    ds = p * (dp * factor - statistics.delta);
  }
};

/// dQ: one warp a (row, head).
inline __global__ void float32_dq(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  QueryRow at;
  if (!at.find(params)) return;
  const int dim = static_cast<int>(p.dim);
  const int dim_v = static_cast<int>(p.dim_v);
  LaneSum dq;
  const RowStatistics statistics(params, at.head * p.total_q + at.row);
  if (at.counts() && !statistics.sees_nothing()) {
    const QueryWork work = as_work(p, at);
    const RowOptions row(params, work, 0);
    const host::KeyRange keys = host::key_bounds(p, at.sequence, at.position);
    const KeyRows<float> k_rows(params, params.operands.k, p.k, at.sequence, work.kv_head);
    const KeyRows<float> v_rows(params, params.operands.v, p.v, at.sequence, work.kv_head);
    LaneRow q;
    LaneRow dout;
    q.load(static_cast<const float*>(params.operands.q) + at.offset(p.q), dim);
    dout.load(static_cast<const float*>(params.operands.dout) + at.offset(p.dout), dim_v);
    for (auto j = static_cast<int>(keys.lo); j < keys.hi; ++j) {
      LaneRow k;
      LaneRow v;
      k.load(k_rows(j), dim);
      v.load(v_rows(j), dim_v);
      const PairGradient pair(params, row, j, q.dot(k), dout.dot(v), statistics);
      dq.add(pair.ds * pair.slope, k);
    }
  }
  dq.store(static_cast<float*>(params.operands.dq) + at.offset(p.dq), dim, p.scale);
}

/// dK and dV: one warp a (key, KV head). Queries in rising order, head by head.
inline __global__ void float32_dkdv(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const std::int64_t number =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  if (number >= p.total_k * p.heads_kv) return;
  const std::int64_t key = number / p.heads_kv;
  const auto kv_head = static_cast<int>(number % p.heads_kv);
  const int dim = static_cast<int>(p.dim);
  const int dim_v = static_cast<int>(p.dim_v);
  std::int64_t batch = p.packed ? 0 : key / p.seqlen_k;
  if (p.packed && p.batch == 0) return;
  if (p.packed) batch = find_sequence(params.operands.cu_seqlens_k, p.cu_seqlens_k, p.batch, key);
  QueryWork work;
  work.sequence = host::sequence_at(p, params.operands, batch);
  const host::Sequence& s = work.sequence;
  const auto j = static_cast<int>(p.packed ? key - s.k_start : key % p.seqlen_k);
  if (j < 0 || j >= s.k_rows) return;
  LaneSum dk;
  LaneSum dv;
  if (j < s.k_len) {
    LaneRow k;
    LaneRow v;
    k.load(KeyRows<float>(params, params.operands.k, p.k, s, kv_head)(j), dim);
    v.load(KeyRows<float>(params, params.operands.v, p.v, s, kv_head)(j), dim_v);
    const auto group = static_cast<int>(p.heads_q / p.heads_kv);
    work.kv_head = kv_head;
    work.rows = 1;
    for (int g = 0; g < group; ++g) {
      work.head = kv_head * group + g;
      for (int i = 0; i < s.q_len; ++i) {
        const host::KeyRange keys = host::key_bounds(p, s, i);
        if (j < keys.lo || j >= keys.hi) continue;
        work.first = i;
        const RowStatistics statistics(params, query_row(params, s, work.head) + i);
        if (statistics.sees_nothing()) continue;
        const RowOptions row(params, work, 0);
        LaneRow q;
        LaneRow dout;
        q.load(static_cast<const float*>(params.operands.q) +
                   host::offset_of(p.q, s.batch, s.q_start, i, work.head),
               dim);
        dout.load(static_cast<const float*>(params.operands.dout) +
                      host::offset_of(p.dout, s.batch, s.q_start, i, work.head),
                  dim_v);
        const PairGradient pair(params, row, j, q.dot(k), v.dot(dout), statistics);
        dk.add(pair.ds * pair.slope, q);
        dv.add(pair.weight, dout);
      }
    }
  }
  dk.store(static_cast<float*>(params.operands.dk) +
               host::offset_of(p.dk, s.batch, s.k_start, j, kv_head),
           dim, p.scale);
  dv.store(static_cast<float*>(params.operands.dv) +
               host::offset_of(p.dv, s.batch, s.k_start, j, kv_head),
           dim_v, 1.0);
}

/// One element of dbias: one warp sums over every batch, head, query and key that it was broadcast
/// to.
inline __global__ void float32_dbias(const __grid_constant__ host::KernelParams params) {
  const host::Problem& p = params.problem;
  const host::BiasShape& shape = p.bias_shape;
  const std::int64_t number =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  if (number >= shape.batch * shape.head * shape.row * shape.col) return;
  const std::int64_t col = number % shape.col;
  const std::int64_t row0 = number / shape.col % shape.row;
  const std::int64_t head0 = number / (shape.col * shape.row) % shape.head;
  const std::int64_t batch0 = number / (shape.col * shape.row * shape.head);
  const int dim = static_cast<int>(p.dim);
  const int dim_v = static_cast<int>(p.dim_v);
  double sum = 0.0;
  for (std::int64_t b = batch0; b < p.batch; b += shape.batch) {
    QueryWork work;
    work.sequence = host::sequence_at(p, params.operands, b);
    work.rows = 1;
    const host::Sequence& s = work.sequence;
    const std::int64_t row_end = shape.row == 1 ? s.q_len : min(row0 + 1, s.q_len);
    for (std::int64_t h = head0; h < p.heads_q; h += shape.head) {
      work.head = static_cast<int>(h);
      work.kv_head = static_cast<int>(h / (p.heads_q / p.heads_kv));
      const KeyRows<float> k_rows(params, params.operands.k, p.k, s, work.kv_head);
      const KeyRows<float> v_rows(params, params.operands.v, p.v, s, work.kv_head);
      for (std::int64_t i = row0; i < row_end; ++i) {
        const RowStatistics statistics(params, query_row(params, s, work.head) + i);
        const host::KeyRange keys = host::key_bounds(p, s, i);
        const std::int64_t lo = shape.col == 1 ? keys.lo : max(keys.lo, col);
        const std::int64_t hi = shape.col == 1 ? keys.hi : min(keys.hi, col + 1);
        if (statistics.sees_nothing() || lo >= hi) continue;
        work.first = static_cast<int>(i);
        const RowOptions row(params, work, 0);
        LaneRow q;
        LaneRow dout;
        q.load(static_cast<const float*>(params.operands.q) +
                   host::offset_of(p.q, s.batch, s.q_start, i, h),
               dim);
        dout.load(static_cast<const float*>(params.operands.dout) +
                      host::offset_of(p.dout, s.batch, s.q_start, i, h),
                  dim_v);
        for (std::int64_t j = lo; j < hi; ++j) {
          LaneRow k;
          LaneRow v;
          k.load(k_rows(static_cast<int>(j)), dim);
          v.load(v_rows(static_cast<int>(j)), dim_v);
          const PairGradient pair(params, row, static_cast<int>(j), q.dot(k), dout.dot(v),
                                  statistics);
          sum += static_cast<double>(pair.ds);
        }
      }
    }
  }
  if (threadIdx.x % 32 != 0) return;
  const std::int64_t to =
      batch0 * p.dbias.batch + head0 * p.dbias.head + row0 * p.dbias.row + col * p.dbias.col;
  store_float(p.bias_dtype, params.operands.dbias, to, static_cast<float>(sum));
}

}  // namespace onchip::cuda::sm80
