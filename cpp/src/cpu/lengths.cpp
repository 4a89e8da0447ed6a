// SPDX-License-Identifier: Apache-2.0
#include "cpu/lengths.hpp"

#include <string>

#include "host/sequence.hpp"

namespace onchip::cpu {
namespace {

std::string entry(const char* name, std::int64_t index, std::int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

[[noreturn]] void reject(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

void check_cu_seqlens(const char* name, const char* hint, const std::int32_t* cu_seqlens,
                      std::int64_t stride, std::int64_t batch, std::int64_t total,
                      std::int64_t longest) {
  std::int64_t previous = 0;
  for (std::int64_t b = 0; b <= batch; ++b) {
    const std::int64_t value = cu_seqlens[b * stride];
    if (value < previous) {
      reject(entry(name, b, value) + ", expected at least " + std::to_string(previous) +
             ": it must not be negative or fall");
    }
    if (value > total) {
      reject(entry(name, b, value) + ", but the packed tensor has " + std::to_string(total) +
             " rows");
    }
    if (b > 0 && value - previous > longest) {
      reject(std::string(hint) + " is " + std::to_string(longest) + ", but sequence " +
             std::to_string(b - 1) + " of " + name + " has " + std::to_string(value - previous) +
             " tokens");
    }
    previous = value;
  }
}

void check_pages(const host::Problem& p, const std::int32_t* block_table, std::int64_t b,
                 std::int64_t keys) {
  for (std::int64_t page = 0; page * p.page_size < keys; ++page) {
    const std::int64_t value = block_table[b * p.block_table_batch + page * p.block_table_page];
    if (value < 0 || value >= p.num_pages) {
      reject("block_table[" + std::to_string(b) + ", " + std::to_string(page) + "] is " +
             std::to_string(value) + ", but the cache has " + std::to_string(p.num_pages) +
             " pages");
    }
  }
}

void check_used(const char* name, std::int64_t b, std::int64_t used, std::int64_t rows) {
  if (used >= 0 && used <= rows) return;
  reject(entry(name, b, used) + ", expected 0 to " + std::to_string(rows));
}

void check_extent(const char* what, std::int64_t length, std::int64_t extent, std::int64_t b) {
  if (extent == 1 || length <= extent) return;
  reject("bias: its " + std::string(what) + " axis has " + std::to_string(extent) +
         " entries, but sequence " + std::to_string(b) + " has " + std::to_string(length) +
         " of them");
}

}  // namespace

void check_lengths(const host::Problem& p, const host::Operands& o) {
  if (p.packed) {
    check_cu_seqlens("cu_seqlens_q", "max_seqlen_q", o.cu_seqlens_q, p.cu_seqlens_q, p.batch,
                     p.total_q, p.seqlen_q);
  }
  if (p.has_cu_seqlens_k) {
    check_cu_seqlens("cu_seqlens_k", "max_seqlen_k", o.cu_seqlens_k, p.cu_seqlens_k, p.batch,
                     p.total_k, p.seqlen_k);
  }
  if (!p.packed && !p.has_seqused_q && !p.has_seqused_k) return;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const host::Sequence s = host::sequence_at(p, o, b);
    if (p.has_seqused_q) check_used("seqused_q", b, o.seqused_q[b * p.seqused_q], s.q_rows);
    if (p.has_seqused_k) check_used("seqused_k", b, o.seqused_k[b * p.seqused_k], s.k_rows);
    if (p.paged) check_pages(p, o.block_table, b, s.k_len);
    if (p.bias_dtype == DType::none) continue;
    check_extent("query", s.q_len, p.bias_shape.row, b);
    check_extent("key", s.k_len, p.bias_shape.col, b);
  }
}

}  // namespace onchip::cpu
