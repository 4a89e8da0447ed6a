// SPDX-License-Identifier: Apache-2.0
#include "cuda/params.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "host/checked.hpp"
#include "host/gpu_plan.hpp"
#include "host/hopper_plan.hpp"

namespace onchip::cuda {
namespace {

constexpr std::int64_t kAlignedBytes = 16;  // of one copy

// What a section's blocks share, so that it fits the L2 cache of an A100 (40 MiB) or H100 (50 MiB).
constexpr std::int64_t kForwardBytes = std::int64_t{32} << 20;
constexpr std::int64_t kBackwardBytes = std::int64_t{24} << 20;

/// A section of Hopper's forward kernels: as many heads as have so many bytes of K and V, but not
/// more than `heads`. Measured with bench's causal cells: long sequences gain from tiles of equal
/// length side by side, though their K and V be larger than the cache, up to these.
struct HopperSection {
  std::int64_t dim;  // up to this D
  std::int64_t heads, bytes;
};
constexpr std::array kHopperSections{
    HopperSection{64, 256, std::int64_t{64} << 20},
    HopperSection{128, 64, std::int64_t{64} << 20},
    HopperSection{256, 64, std::int64_t{128} << 20},
};

/// A tensor of rows, and the extents beyond which its strides are not used.
struct Rows {
  const void* data;
  const host::Strides& strides;
  std::int64_t batch, rows, heads;
};

bool is_aligned(const Rows& t, std::int64_t element_bytes) {
  const auto whole = [&](std::int64_t extent, std::int64_t stride) {
    return extent <= 1 || stride * element_bytes % kAlignedBytes == 0;
  };
  return reinterpret_cast<std::uintptr_t>(t.data) % kAlignedBytes == 0 &&
         whole(t.batch, t.strides.batch) && whole(t.rows, t.strides.row) &&
         whole(t.heads, t.strides.head);
}

/// Whether rows of every tensor can be copied 16 bytes at a time.
bool all_aligned(const host::Problem& p, const host::Operands& o) {
  const std::int64_t batch = p.packed ? 1 : p.batch;
  const std::int64_t rows = p.packed ? p.total_q : p.seqlen_q;
  const std::int64_t pages = p.paged ? p.num_pages : batch;
  const std::int64_t keys = p.paged ? p.page_size : p.packed ? p.total_k : p.seqlen_k;
  const auto aligned = [&](std::initializer_list<Rows> tensors) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [&](const Rows& t) { return is_aligned(t, size_of(p.dtype)); });
  };
  const bool forward = aligned({{o.q, p.q, batch, rows, p.heads_q},
                                {o.k, p.k, pages, keys, p.heads_kv},
                                {o.v, p.v, pages, keys, p.heads_kv},
                                {o.out, p.out, batch, rows, p.heads_q}});
  if (p.pass == Pass::forward || !forward) return forward;
  return aligned({{o.dout, p.dout, batch, rows, p.heads_q},
                  {o.dq, p.dq, batch, rows, p.heads_q},
                  {o.dk, p.dk, batch, keys, p.heads_kv},
                  {o.dv, p.dv, batch, keys, p.heads_kv}});
}

std::int64_t hopper_heads(const host::Problem& p, std::int64_t bytes_of_head) {
  const auto section =
      std::find_if(kHopperSections.begin(), kHopperSections.end() - 1,
                   [&](const HopperSection& s) { return std::max(p.dim, p.dim_v) <= s.dim; });
  return std::min(section->heads, section->bytes / bytes_of_head);
}

/// KV heads whose tiles are scheduled together, so that what they share stays in the L2 cache: K
/// and V in forward, the queries of the group in backward. Only where a causal mask leaves blocks
/// of different length; else one head after another does as well. A section's longest blocks start
/// first, so a short last section would leave them alone at the end: of the next few numbers of
/// sections, the one whose last is fullest.
std::int64_t heads_in_section(const host::Problem& p, bool hopper) {
  if (p.window_right != 0 || p.packed) return 1;
  const std::int64_t element = size_of(p.dtype);
  const std::int64_t group = p.heads_q / p.heads_kv;
  const bool forward = p.pass == Pass::forward;
  const std::int64_t bytes = std::max<std::int64_t>(
      forward ? p.seqlen_k * (p.dim + p.dim_v) * element
              : p.seqlen_q * group * ((p.dim + p.dim_v) * element + p.dim * 4),
      1);
  const std::int64_t heads = std::max<std::int64_t>(p.batch * p.heads_kv, 1);
  const std::int64_t fit =
      hopper ? hopper_heads(p, bytes) : (forward ? kForwardBytes : kBackwardBytes) / bytes;
  const std::int64_t limit = std::clamp<std::int64_t>(fit, 1, heads);
  if (!forward) return limit;
  constexpr std::int64_t kTries = 16;  // among many sections a short one does not matter
  const auto missing = [&](std::int64_t size) {
    return static_cast<double>((size - heads % size) % size) / static_cast<double>(size);
  };
  const std::int64_t fewest = host::ceil_div(heads, limit);
  std::int64_t best = limit;
  for (std::int64_t sections = fewest; sections < fewest + kTries; ++sections) {
    const std::int64_t size = host::ceil_div(heads, sections);
    if (2 * size <= limit) break;
    if (missing(size) < missing(best)) best = size;
  }
  return best;
}

}  // namespace

host::KernelParams make_params(const detail::PlanImpl& plan, const host::Operands& operands,
                               void* workspace) {
  const host::Problem& p = plan.problem;
  const PlanInfo& info = plan.info;
  host::KernelParams params;
  params.problem = p;
  params.operands = operands;
  const bool hopper = host::is_hopper(info);
  params.blocks = hopper ? host::hopper_blocks(p, info.tile_q) : info.grid;
  params.schedule(hopper                    ? host::hopper_tiles(p, info.tile_q)
                  : p.pass == Pass::forward ? host::query_tiles(p, info.tile_q)
                                            : host::key_tiles(p, info.tile_k),
                  heads_in_section(p, hopper));
  params.num_splits = info.num_splits;
  params.split_size = info.split_size;
  params.dropout_threshold = host::dropout_threshold(p.dropout_p);
  params.kept_scale = 1.0F / (1.0F - static_cast<float>(params.dropout_threshold) / 65536.0F);
  params.aligned = all_aligned(p, operands);
  params.full = host::needs_full(p);

  const host::GpuWorkspace at =
      host::gpu_workspace(p, info.num_splits, host::hopper_counts_tiles(p, info));
  const auto place = [&]<class T>(std::int64_t offset, T*& pointer) {
    if (offset == host::GpuWorkspace::kAbsent) return;
    pointer = reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + offset);
  };
  place(at.first_tile, params.first_tile);
  place(at.next_tile, params.next_tile);
  place(at.partial_out, params.partial_out);
  place(at.partial_lse, params.partial_lse);
  place(at.delta, params.delta);
  place(at.lse2, params.lse2);
  place(at.lse_rest, params.lse_rest);
  if (at.statistics_in_dq) {  // 8 of the 16 bytes or more that a row of dq has
    const auto address = reinterpret_cast<std::uintptr_t>(operands.dq);
    params.delta = reinterpret_cast<float*>((address + 3) & ~std::uintptr_t{3});
    params.lse2 = params.delta + p.total_q * p.heads_q;
  }
  place(at.dq_sum, params.dq_sum);
  return params;
}

}  // namespace onchip::cuda
