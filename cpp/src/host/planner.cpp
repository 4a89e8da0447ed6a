// SPDX-License-Identifier: Apache-2.0
#include "host/planner.hpp"

#include <algorithm>
#include <string>

#include "host/checked.hpp"
#include "host/cpu_plan.hpp"
#include "host/devices.hpp"
#include "host/gpu_plan.hpp"
#include "host/hopper_plan.hpp"

namespace onchip::host {
namespace {

constexpr std::int64_t kMaxGpuDim = 256;
constexpr std::int64_t kMaxSplits = 128;
constexpr std::int64_t kMaxGrid = 2147483647;

[[noreturn]] void unsupported(const std::string& message) {
  throw Error(ErrorCode::unsupported, message);
}

MaskClass mask_class(const Problem& p) {
  if (p.window_left >= 0 || p.window_right > 0) return MaskClass::local;
  return p.window_right == 0 ? MaskClass::causal : MaskClass::dense;
}

/// Where the sequences of a batch may differ in length, none is asked for: it would let a row's
/// bits depend on its neighbours.
TileQuery tile_query(const Problem& p, const DeviceInfo& device) {
  return {p.pass,
          size_of(p.dtype),
          p.dim,
          p.dim_v,
          mask_class(p),
          device.on_chip_bytes,
          p.has_cu_seqlens_k || p.has_seqused_k ? 0 : p.seqlen_k};
}

void check_gpu(const Problem& p, const DeviceInfo& device) {
  if (device.compute_capability < 80) {
    unsupported("device: " + device.name + " has compute capability " +
                std::to_string(device.compute_capability) +
                ", expected 80 or more; the cpu backend has no such limit");
  }
  if (p.dtype == DType::float64) {
    unsupported(
        "q: float64 has no GPU kernel (float32, float16, bfloat16 have); the cpu backend "
        "computes it");
  }
  if (device.family != 0 && device.family != kSm80 && device.family != kSm90) {
    throw Error(ErrorCode::invalid_argument,
                "device: family is " + std::to_string(device.family) + ", expected 0, 80 or 90");
  }
  const auto check_dim = [](const char* name, std::int64_t dim) {
    if (dim % 8 == 0 && dim >= 8 && dim <= kMaxGpuDim) return;
    unsupported(std::string(name) + ": head dim " + std::to_string(dim) +
                ", expected a multiple of 8 up to 256 on a GPU; the cpu backend takes any");
  };
  check_dim("q", p.dim);
  check_dim("v", p.dim_v);
}

std::string family_name(const TileRow& row) { return "sm" + std::to_string(row.family); }

/// The Hopper kernel of the problem, or null.
const TileRow* hopper_tile(const Problem& p, const DeviceInfo& device) {
  const std::int32_t family =
      device.family != 0 ? device.family : newest_family(device.compute_capability);
  return family == kSm90 && hopper_lacks(p) == nullptr ? find_tile(kSm90, tile_query(p, device))
                                                       : nullptr;
}

const TileRow& sm80_tile(const Problem& p, const DeviceInfo& device) {
  const TileRow* row = find_tile(kSm80, tile_query(p, device));
  if (row == nullptr) {
    unsupported("device: no tile fits the " + std::to_string(device.on_chip_bytes) +
                " bytes of shared memory of " + device.name + "; the cpu backend computes it");
  }
  return *row;
}

std::string kernel_name(const TileRow& row, const Problem& p) {
  std::string name = family_name(row);
  name += row.pass == Pass::forward ? "_fwd_" : "_bwd_";
  name += name_of(p.dtype);
  // Piece by piece: GCC 12 warns falsely (-Wrestrict) about "text" + std::to_string().
  name.append("_d").append(std::to_string(row.dim));
  if (row.dim_v != row.dim) name.append("_").append(std::to_string(row.dim_v));
  name += row.suffix;
  if (!row_kernels(p) && needs_full(p)) name += "_full";
  return name;
}

/// Splits that fill the device: the fewest that come within 85% of the best share of busy
/// multiprocessors.
std::int64_t filling_splits(std::int64_t tiles, std::int64_t key_tiles, std::int64_t units) {
  if (tiles <= 0 || key_tiles <= 4 ||
      static_cast<double>(tiles) >= 0.8 * static_cast<double>(units)) {
    return 1;
  }
  const std::int64_t most = std::min({kMaxSplits, key_tiles, units});
  // A count that leaves the longest part as long as one fewer does gains nothing.
  const auto useful = [&](std::int64_t s) {
    return s == 1 || ceil_div(key_tiles, s) != ceil_div(key_tiles, s - 1);
  };
  const auto busy = [&](std::int64_t s) {
    const double waves = static_cast<double>(tiles * s) / static_cast<double>(units);
    return waves / static_cast<double>(ceil_div(tiles * s, units));
  };
  double best = 0;
  for (std::int64_t s = 1; s <= most; ++s) {
    if (useful(s)) best = std::max(best, busy(s));
  }
  for (std::int64_t s = 1; s < most; ++s) {
    if (useful(s) && busy(s) >= 0.85 * best) return s;
  }
  return most;
}

void choose_splits(const Problem& p, PlanInfo& info) {
  info.num_splits = 1;
  info.split_size = p.seqlen_k;
  if (p.pass == Pass::backward || p.seqlen_k <= 0) return;
  if (p.split_size > 0) {
    info.split_size = std::min(p.split_size, p.seqlen_k);
  } else if (p.num_splits != 1) {
    const std::int64_t key_tiles = ceil_div(p.seqlen_k, info.tile_k);
    std::int64_t splits = p.num_splits;
    if (splits <= 0) {
      // A window on the left already bounds the keys of a tile.
      splits = p.window_left >= 0
                   ? 1
                   : filling_splits(query_blocks(p, info.tile_q), key_tiles, info.device.units);
    }
    const std::int64_t tiles_of_part = ceil_div(key_tiles, std::min(splits, key_tiles));
    info.split_size = std::min(tiles_of_part * info.tile_k, p.seqlen_k);
  }
  info.num_splits = ceil_div(p.seqlen_k, info.split_size);
}

std::int64_t choose_grid(const Problem& p, const TileRow& row, const PlanInfo& info) {
  const bool forward = p.pass == Pass::forward;
  const std::int64_t blocks =
      row.family == kSm90
          ? hopper_blocks(p, info.tile_q)
          : product({forward ? query_blocks(p, info.tile_q) : key_blocks(p, info.tile_k),
                     info.num_splits});
  if (blocks > kMaxGrid) {
    unsupported("q: the launch needs " + std::to_string(blocks) +
                " blocks, a grid holds 2^31 - 1; split the batch");
  }
  // Blocks of sm90 stay and take tile after tile.
  return row.family == kSm90 ? std::min<std::int64_t>(blocks, info.device.units) : blocks;
}

void take_tile(const Problem& p, const TileRow& row, PlanInfo& info) {
  info.backend = family_name(row);
  info.kernel = kernel_name(row, p);
  info.tile_q = row.tile_q;
  info.tile_k = row.tile_k;
  info.stages = row.stages;
  info.warps = row.warps;
  info.on_chip_bytes = on_chip_bytes(row);
}

void plan_gpu(const Problem& p, PlanInfo& info) {
  check_gpu(p, info.device);
  const TileRow& sm80 = sm80_tile(p, info.device);
  take_tile(p, sm80, info);
  choose_splits(p, info);
  // Where splits fill the device better, the Hopper kernels have none to offer.
  const TileRow* hopper = info.num_splits == 1 ? hopper_tile(p, info.device) : nullptr;
  if (hopper != nullptr) take_tile(p, *hopper, info);
  info.workspace_bytes = static_cast<std::size_t>(
      gpu_workspace(p, info.num_splits, hopper_counts_tiles(p, info)).bytes);
  info.grid = choose_grid(p, hopper != nullptr ? *hopper : sm80, info);
}

void plan_on_cpu(const Problem& p, PlanInfo& info) {
  const CpuPlan cpu = plan_cpu(p, info.device.units);
  info.backend = "cpu";
  info.kernel = std::string(p.pass == Pass::forward ? "cpu_fwd_" : "cpu_bwd_") + name_of(p.dtype);
  info.tile_q = cpu.tile_q;
  info.tile_k = cpu.tile_k;
  info.on_chip_bytes = static_cast<std::int64_t>(cpu.scratch_bytes);
  info.grid = cpu.tasks;
  const bool split = p.pass == Pass::forward && cpu.num_splits > 1;
  info.num_splits = split ? cpu.num_splits : 1;
  info.split_size = split ? cpu.split_size : p.seqlen_k;
  info.threads = cpu.threads;
  info.workspace_bytes = cpu.workspace_bytes();
}

}  // namespace

const TileRow* tile_of(const Problem& problem, const PlanInfo& info) {
  if (info.device.type == DeviceType::cpu) return nullptr;
  return find_tile(is_hopper(info) ? kSm90 : kSm80, tile_query(problem, info.device));
}

bool counts_units(const Problem& p) {
  const bool chose_splits = p.num_splits == 0 && p.split_size == 0 && p.window_left < 0;
  return p.pass == Pass::forward && chose_splits;
}

bool packs_heads(const Problem& p, std::int64_t tile_q) {
  return p.heads_kv > 0 && p.heads_q != p.heads_kv && p.seqlen_q < tile_q;
}

Tiling tiling_of(const Problem& p, const PlanInfo& info) {
  const bool cpu = info.device.type == DeviceType::cpu;
  Tiling tiling;
  tiling.tile_q = std::max<std::int64_t>(info.tile_q, 1);
  tiling.tile_k = std::max<std::int64_t>(info.tile_k, 1);
  if (is_hopper(info)) {
    tiling.packed_heads = std::int64_t{1} << hopper_pack_shift(p, info.tile_q);
  } else {
    const bool packs = cpu ? p.packed || p.seqlen_q < info.tile_q
                           : p.pass == Pass::forward && packs_heads(p, info.tile_q);
    if (packs && p.heads_kv > 0) tiling.packed_heads = p.heads_q / p.heads_kv;
  }
  tiling.num_splits = info.num_splits;
  tiling.keys_outer = !cpu;
  tiling.float32_accumulators = size_of(p.dtype) == 2;
  tiling.l2_bytes = static_cast<double>(info.device.l2_bytes);
  return tiling;
}

PlanInfo plan_without_hopper(Problem problem, DeviceInfo device) {
  problem.num_splits = 1;  // as of every plan for Hopper
  device.family = 80;
  return make_plan(problem, device);
}

PlanInfo make_plan(const Problem& problem, const DeviceInfo& device) {
  PlanInfo info;
  info.pass = problem.pass;
  info.device = device;
  if (device.type == DeviceType::cpu) {
    plan_on_cpu(problem, info);
  } else {
    plan_gpu(problem, info);
  }
  const Workload work = workload_of(problem);
  info.cost =
      tiled_cost(work, tiling_of(problem, info), static_cast<double>(info.workspace_bytes), device);
  info.standard = standard_cost(work, device);
  return info;
}

}  // namespace onchip::host
