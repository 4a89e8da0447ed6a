// SPDX-License-Identifier: Apache-2.0
// Where the rows of one sequence lie, and which keys each of its rows sees. Host and device code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host/problem.hpp"

#ifdef __CUDACC__
#define ONCHIP_HOST_DEVICE __host__ __device__
#else
#define ONCHIP_HOST_DEVICE
#endif

namespace onchip::host {

/// One sequence of the batch. `*_rows` is what memory holds, `*_len` what counts (seqused).
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t q_start = 0, q_rows = 0, q_len = 0;
  std::int64_t k_start = 0, k_rows = 0, k_len = 0;
};

/// Keys [lo, hi) that a row sees: every mask of the contract is such a range.
struct KeyRange {
  std::int64_t lo = 0, hi = 0;
  [[nodiscard]] ONCHIP_HOST_DEVICE bool empty() const { return lo >= hi; }
};

/// Element offset of row `row` of `sequence` (counted from its start) and head `head`.
ONCHIP_HOST_DEVICE inline std::int64_t offset_of(const Strides& strides, std::int64_t batch,
                                                 std::int64_t start, std::int64_t row,
                                                 std::int64_t head) {
  return batch * strides.batch + (start + row) * strides.row + head * strides.head;
}

/// Sequence b. Lengths that lead outside of the tensors are cut: a CPU call has refused them
/// before, a GPU call must not follow them.
ONCHIP_HOST_DEVICE inline Sequence sequence_at(const Problem& problem, const Operands& operands,
                                               std::int64_t b) {
  Sequence s;
  s.batch = b;
  s.q_rows = problem.seqlen_q;
  s.k_rows = problem.seqlen_k;
  const auto cut = [](std::int64_t value, std::int64_t limit) {
    return value < 0 ? 0 : value > limit ? limit : value;
  };
  if (problem.packed) {
    s.q_start = cut(operands.cu_seqlens_q[b * problem.cu_seqlens_q], problem.total_q);
    s.q_rows = cut(operands.cu_seqlens_q[(b + 1) * problem.cu_seqlens_q] - s.q_start,
                   problem.total_q - s.q_start);
  }
  if (problem.has_cu_seqlens_k) {
    s.k_start = cut(operands.cu_seqlens_k[b * problem.cu_seqlens_k], problem.total_k);
    s.k_rows = cut(operands.cu_seqlens_k[(b + 1) * problem.cu_seqlens_k] - s.k_start,
                   problem.total_k - s.k_start);
  }
  s.q_len =
      problem.has_seqused_q ? cut(operands.seqused_q[b * problem.seqused_q], s.q_rows) : s.q_rows;
  s.k_len =
      problem.has_seqused_k ? cut(operands.seqused_k[b * problem.seqused_k], s.k_rows) : s.k_rows;
  return s;
}

/// Contract, rule 4: -left <= j - (i + c) <= right with c = k_len - q_len. lo and hi never fall as
/// i grows; lo >= hi where the row sees nothing.
ONCHIP_HOST_DEVICE inline KeyRange key_bounds(const Problem& problem, const Sequence& s,
                                              std::int64_t i) {
  const std::int64_t diagonal = i + s.k_len - s.q_len;
  const std::int64_t reach = s.q_len + s.k_len;  // a window this wide sees everything
  KeyRange range{0, s.k_len};
  if (problem.window_left >= 0) {
    range.lo = std::max<std::int64_t>(0, diagonal - std::min(problem.window_left, reach));
  }
  if (problem.window_right >= 0) {
    range.hi = std::min(s.k_len, diagonal + std::min(problem.window_right, reach) + 1);
  }
  return range;
}

/// The same, {} for a row that sees nothing or does not count.
ONCHIP_HOST_DEVICE inline KeyRange visible_keys(const Problem& problem, const Sequence& s,
                                                std::int64_t i) {
  const KeyRange range = key_bounds(problem, s, i);
  return i >= s.q_len || range.empty() ? KeyRange{} : range;
}

ONCHIP_HOST_DEVICE inline KeyRange intersect(const KeyRange& a, const KeyRange& b) {
  return {std::max(a.lo, b.lo), std::min(a.hi, b.hi)};
}

}  // namespace onchip::host
