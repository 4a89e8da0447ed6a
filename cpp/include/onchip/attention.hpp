// SPDX-License-Identifier: Apache-2.0
// Exact attention, forward and backward, on memory that the caller owns.
//
//   onchip::Attention a;                       // shapes, strides and options
//   a.q = onchip::make_tensor(...);  ...
//   onchip::Plan plan = onchip::plan(a, onchip::Pass::forward);
//   std::vector<std::byte> workspace(plan.workspace_bytes());
//   onchip::forward(plan, a, workspace.data(), workspace.size(), {});
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "onchip/export.h"
#include "onchip/plan.hpp"
#include "onchip/status.hpp"
#include "onchip/tensor.hpp"

namespace onchip {

/// What scores are relative to before 2^x. `safe`: each row's maximum over the keys so far.
/// `automatic` lets a kernel keep an earlier great score until a later one is far above it, and
/// compute tiles that this does not suit again, safely: results are as exact. Only Hopper's forward
/// kernels do so; all else is always safe.
enum class Softmax : std::int32_t { automatic = 0, safe = 1 };

/// What is computed between Q.K^T and the softmax, and how keys are split.
/// For query i and key j, with c = Sk - Sq in effective lengths (causal is bottom-right aligned):
///   s = scale * q_i.k_j;  s = softcap * tanh(s / softcap) if softcap > 0;
///   s += bias[b,h,i,j];  s -= alibi_slopes[h] * |i + c - j|;
///   key j is visible iff -window_left <= j - (i + c) <= window_right.
struct Options {
  std::optional<double> scale;     ///< Default 1/sqrt(D); within +-1e18.
  bool causal = false;             ///< The same as window_right = 0.
  std::int64_t window_left = -1;   ///< Keys to the left of the diagonal; -1 = unlimited.
  std::int64_t window_right = -1;  ///< Keys to the right of the diagonal; -1 = unlimited.
  double softcap = 0.0;            ///< 0 = off, else 1e-18 to 1e18.
  double dropout_p = 0.0;          ///< In [0, 1); dropped where a Philox lane < round(65536 p).
  std::uint64_t seed = 0;          ///< Dropout seed; may differ between plan and launch.
  std::uint64_t offset = 0;        ///< Dropout offset; may differ between plan and launch.
  bool deterministic = false;      ///< Backward: bitwise repeatable (always so on the CPU).
  std::int32_t num_splits = 1;     ///< Forward split-KV: 1 = none, 0 = the planner chooses.
  std::int64_t split_size = 0;     ///< Keys of one split; overrides num_splits when > 0.
  std::int64_t max_seqlen_q = 0;   ///< Variable length: hint for planning; 0 = unknown.
  std::int64_t max_seqlen_k = 0;   ///< Variable length: hint for planning; 0 = unknown.
  Softmax softmax = Softmax::automatic;  ///< Forward: `safe` forces the plain online softmax.
};

/// One attention problem: every tensor it may read or write. Tensors left default are "not given".
///
/// Shapes, dense: q (B, Sq, Hq, D), k (B, Sk, Hkv, D), v (B, Sk, Hkv, Dv), out (B, Sq, Hq, Dv),
/// lse (B, Hq, Sq); Hq % Hkv == 0.
/// Packed (cu_seqlens_q and cu_seqlens_k given): q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv),
/// out (Tq, Hq, Dv), lse (Hq, Tq). Tokens past the last sequence get zeros and lse -inf.
/// Paged (block_table given, forward only): k (pages, page_size, Hkv, D), v likewise; seqused_k
/// says how many keys of each sequence there are.
/// Any strides, the last one 1. q, k, v, out, dout and the gradients share one dtype: float32,
/// float16, bfloat16 or float64. The "statistics" (lse, dlse, alibi_slopes, sinks) are float32, or
/// float64 where q is float64. What is written shares memory with no other tensor and not with
/// itself.
struct Attention {
  Options options;

  TensorView q, k, v;
  TensorView bias;          ///< (B|1, Hq|1, Sq|1, Sk|1), q's dtype or that of the statistics.
  TensorView alibi_slopes;  ///< (Hq) or (B, Hq).
  TensorView sinks;         ///< (Hq): a logit in the denominator only.
  TensorView cu_seqlens_q;  ///< int32 (B + 1): first token of each sequence.
  TensorView cu_seqlens_k;  ///< int32 (B + 1).
  TensorView seqused_q;     ///< int32 (B): tokens of each sequence that count.
  TensorView seqused_k;     ///< int32 (B).
  TensorView block_table;   ///< int32 (B, max_pages): page of each stretch of page_size keys.

  TensorView out;  ///< Written by forward, read by backward.
  TensorView lse;  ///< Natural-log log-sum-exp. Optional in forward, read by backward.

  TensorView dout, dlse;                 ///< Backward: incoming gradients; dlse is optional.
  TensorView dq, dk, dv, dbias, dsinks;  ///< Backward: written; dbias and dsinks are optional.
};

/// Makes a plan for the device that q lies on. Pure but for reading that device's facts once.
/// Throws `Error` (invalid_argument, unsupported) naming the argument.
ONCHIP_API Plan plan(const Attention& problem, Pass pass);

/// The same for any device, real or named; needs no such device and makes no device call.
ONCHIP_API Plan plan(const Attention& problem, Pass pass, const DeviceInfo& device);

/// Computes out and, where given, lse. The shapes, strides and options must be those planned;
/// pointers, seed and offset are free. `workspace` has at least plan.workspace_bytes() bytes on
/// q's device, aligned to 256. Allocates nothing and does not synchronise. Thread-safe.
ONCHIP_API void forward(const Plan& plan, const Attention& problem, void* workspace,
                        std::size_t workspace_bytes, Stream stream);

/// Computes dq, dk, dv and, where given, dbias and dsinks, from dout and the forward's out and lse.
ONCHIP_API void backward(const Plan& plan, const Attention& problem, void* workspace,
                         std::size_t workspace_bytes, Stream stream);

/// The most parts that merge_states joins.
inline constexpr std::size_t kMaxMergeParts = 256;

/// Joins results over disjoint sets of keys: out = sum_n w_n outs[n], w_n = exp(lses[n] - lse),
/// lse = log sum_n exp(lses[n]). Shapes as out and lse in `Attention`, dense or packed.
/// A row that no part sees gets out 0 and lse -inf.
ONCHIP_API void merge_states(std::span<const TensorView> outs, std::span<const TensorView> lses,
                             const TensorView& out, const TensorView& lse, Stream stream);

/// Writes the dropout mask (uint8, 1 = kept), shape (B, Hq, Sq, Sk). Philox4x32-10 with key = seed,
/// counter = (j div 8, i, b*Hq + h, offset); lane j mod 8 of 16 bits; kept iff >= round(65536 p).
ONCHIP_API void dropout_mask(const TensorView& mask, double p, std::uint64_t seed,
                             std::uint64_t offset, Stream stream);

}  // namespace onchip
