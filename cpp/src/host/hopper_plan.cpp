// SPDX-License-Identifier: Apache-2.0
#include "host/hopper_plan.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "host/checked.hpp"

namespace onchip::host {
namespace {

constexpr std::int64_t kStrideBytes = 16;
constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;
constexpr std::int64_t kMaxPack = 64;

struct Axis {
  std::int64_t extent, stride;
};

/// Whether TMA can follow the axes of a tensor; the stride of a single element is not used.
bool tma_follows(std::initializer_list<Axis> axes, std::int64_t element_bytes) {
  return std::all_of(axes.begin(), axes.end(), [&](const Axis& axis) {
    const std::int64_t bytes = axis.stride * element_bytes;
    return axis.extent >= 1 && axis.extent < kMaxExtent &&
           (axis.extent <= 1 ||
            (bytes >= kStrideBytes && bytes < kMaxStrideBytes && bytes % kStrideBytes == 0));
  });
}

}  // namespace

const char* hopper_lacks(const Problem& p) {
  if (p.pass != Pass::forward) return "a backward pass";
  if (size_of(p.dtype) != 2) return "float32";
  if (p.paged) return "pages";
  if (p.dropout_p > 0) return "dropout";
  if (p.bias_dtype != DType::none) return "bias";
  if (!(p.scale > 0)) return "such a scale";
  const std::int64_t batch = p.packed ? 1 : p.batch;
  const std::int64_t queries = p.packed ? p.total_q : p.seqlen_q;
  const std::int64_t keys = p.has_cu_seqlens_k ? p.total_k : p.seqlen_k;
  const std::int64_t batch_k = p.has_cu_seqlens_k ? 1 : p.batch;
  const auto follows = [&](const Strides& s, std::int64_t b, std::int64_t rows,
                           std::int64_t heads) {
    return tma_follows({{b, s.batch}, {rows, s.row}, {heads, s.head}}, size_of(p.dtype));
  };
  const bool all =
      follows(p.q, batch, queries, p.heads_q) && follows(p.k, batch_k, keys, p.heads_kv) &&
      follows(p.v, batch_k, keys, p.heads_kv) && follows(p.out, batch, queries, p.heads_q);
  return all ? nullptr : "such strides";
}

std::int32_t hopper_pack_shift(const Problem& p, std::int64_t tile_q) {
  const std::int64_t group = p.heads_q / std::max<std::int64_t>(p.heads_kv, 1);
  const std::int64_t rows = p.packed ? p.total_q / std::max<std::int64_t>(p.batch, 1) : p.seqlen_q;
  const bool packs = rows < tile_q && group > 1 && group <= kMaxPack &&
                     std::has_single_bit(static_cast<std::uint64_t>(group));
  return packs ? std::countr_zero(static_cast<std::uint64_t>(group)) : 0;
}

std::int64_t hopper_tiles(const Problem& p, std::int64_t tile_q) {
  const std::int32_t shift = hopper_pack_shift(p, tile_q);
  const std::int64_t span = tile_q >> shift;
  const std::int64_t heads = (p.heads_q / p.heads_kv) >> shift;
  const std::int64_t tiles = p.packed ? (p.total_q + product({p.batch, span - 1})) / span
                                      : ceil_div(p.seqlen_q, span);
  return product({tiles, heads});
}

std::int64_t hopper_blocks(const Problem& p, std::int64_t tile_q) {
  return product({hopper_tiles(p, tile_q), p.heads_kv, p.packed ? 1 : p.batch});
}

}  // namespace onchip::host
