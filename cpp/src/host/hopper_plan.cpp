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
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 29;  // sums of four are 32-bit integers
constexpr std::int64_t kMaxPack = 64;

struct Axis {
  std::int64_t extent, stride;
};

/// Whether TMA can follow the axes of a tensor; the stride of a single element is not used.
bool tma_follows(std::initializer_list<Axis> axes, std::int64_t element_bytes) {
  const std::int64_t unit = kStrideBytes / element_bytes;
  const std::int64_t limit = kMaxStrideBytes / element_bytes;
  return std::all_of(axes.begin(), axes.end(), [&](const Axis& axis) {
    return axis.extent <= 1 ||
           (axis.stride >= unit && axis.stride < limit && axis.stride % unit == 0);
  });
}

}  // namespace

const char* hopper_lacks(const Problem& p) {
  if (p.pass != Pass::forward) return "a backward pass";
  if (size_of(p.dtype) != 2) return "float32";
  if (p.paged) return "pages";
  if (!(static_cast<float>(p.scale) > 0)) return "such a scale";
  const std::int64_t batch_q = p.packed ? 1 : p.batch;
  const std::int64_t batch_k = p.has_cu_seqlens_k ? 1 : p.batch;
  const std::int64_t queries = p.packed ? p.total_q : p.seqlen_q;
  const std::int64_t keys = p.has_cu_seqlens_k ? p.total_k : p.seqlen_k;
  for (const std::int64_t extent : {p.batch, queries, keys, p.heads_q}) {
    if (extent < 1 || extent >= kMaxExtent) return "such lengths";
  }
  const std::int64_t bytes = size_of(p.dtype);
  const auto queries_follow = [&](const Strides& s) {
    return tma_follows({{batch_q, s.batch}, {queries, s.row}, {p.heads_q, s.head}}, bytes);
  };
  const auto keys_follow = [&](const Strides& s) {
    return tma_follows({{batch_k, s.batch}, {keys, s.row}, {p.heads_kv, s.head}}, bytes);
  };
  const bool all =
      queries_follow(p.q) && queries_follow(p.out) && keys_follow(p.k) && keys_follow(p.v);
  // Groups of q's heads are an axis of their own.
  return all && tma_follows({{p.heads_kv, p.q.head * (p.heads_q / p.heads_kv)}}, bytes)
             ? nullptr
             : "such strides";
}

std::int32_t hopper_pack_shift(const Problem& p, std::int64_t tile_q) {
  const std::int64_t group = p.heads_q / std::max<std::int64_t>(p.heads_kv, 1);
  const bool shorter = p.packed ? p.hint_q > 0 && p.hint_q < tile_q : p.seqlen_q < tile_q;
  const bool packs = shorter && group > 1 && group <= kMaxPack &&
                     std::has_single_bit(static_cast<std::uint64_t>(group));
  return packs ? std::countr_zero(static_cast<std::uint64_t>(group)) : 0;
}

std::int64_t hopper_tiles(const Problem& p, std::int64_t tile_q) {
  const std::int32_t shift = hopper_pack_shift(p, tile_q);
  const std::int64_t span = tile_q >> shift;
  const std::int64_t heads = (p.heads_q / p.heads_kv) >> shift;
  const std::int64_t tiles =
      p.packed ? (p.total_q + product({p.batch, span - 1})) / span : ceil_div(p.seqlen_q, span);
  return product({tiles, heads});
}

std::int64_t hopper_blocks(const Problem& p, std::int64_t tile_q) {
  return product({hopper_tiles(p, tile_q), p.heads_kv, p.packed ? 1 : p.batch});
}

bool hopper_counts_tiles(const Problem& p, const PlanInfo& info) {
  const bool differ = p.window_left >= 0 || p.window_right >= 0 || p.packed || p.has_cu_seqlens_k ||
                      p.has_seqused_q || p.has_seqused_k;
  return is_hopper(info) && differ && hopper_blocks(p, info.tile_q) > info.device.units;
}

}  // namespace onchip::host
