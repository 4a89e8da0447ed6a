// SPDX-License-Identifier: Apache-2.0
#include "host/cpu_plan.hpp"

#include <algorithm>

namespace onchip::host {
namespace {

/// Query tiles of one KV head, over all sequences: heads of a group share tiles where one head
/// would leave a tile empty.
std::int64_t query_tiles(const Problem& p, std::int64_t tile_q) {
  const std::int64_t group = p.heads_q / p.heads_kv;
  if (p.packed) return sum(ceil_div(product({p.total_q, group}), tile_q), p.batch);
  const std::int64_t tiles = p.seqlen_q < tile_q ? ceil_div(p.seqlen_q * group, tile_q)
                                                 : product({group, ceil_div(p.seqlen_q, tile_q)});
  return product({p.batch, tiles});
}

/// Enough parts to give each thread two tasks, none smaller than 512 keys.
void choose_splits(const Problem& p, CpuPlan& plan) {
  const std::int64_t keys = std::max<std::int64_t>(p.seqlen_k, 1);
  std::int64_t splits = p.num_splits;
  if (splits == 0) {
    const std::int64_t wanted =
        ceil_div(std::int64_t{2} * plan.threads, std::max<std::int64_t>(plan.tasks, 1));
    splits = std::clamp<std::int64_t>(wanted, 1, ceil_div(keys, 512));
  }
  const std::int64_t size = p.split_size > 0 ? p.split_size : ceil_div(keys, splits);
  plan.split_size = std::min(size, keys);
  plan.num_splits = ceil_div(keys, plan.split_size);
}

/// Several accumulators of dK and dV let threads share one head. They stay within two, or 32 MiB,
/// or 1% of the score matrix, so that memory stays linear in the sequence.
std::int64_t choose_chunks(const Problem& p, const CpuPlan& plan, std::size_t accumulator_bytes) {
  const std::int64_t heads = std::max<std::int64_t>(p.batch * p.heads_kv, 1);
  const double scores = 4.0 * static_cast<double>(p.total_q) * static_cast<double>(p.heads_q) *
                        static_cast<double>(p.seqlen_k);
  const double budget = std::max(32.0 * 1024 * 1024, 0.01 * scores);
  const double all = static_cast<double>(accumulator_bytes) * static_cast<double>(heads);
  const auto affordable = static_cast<std::int64_t>(std::min(budget / std::max(all, 1.0), 1e6));
  const std::int64_t tiles =
      ceil_div(query_tiles(p, plan.tile_q), std::max<std::int64_t>(p.batch, 1));
  const std::int64_t most = std::min(tiles, std::max<std::int64_t>(2, affordable));
  return std::clamp<std::int64_t>(ceil_div(plan.threads, heads), 1,
                                  std::max<std::int64_t>(1, most));
}

template <class T>
CpuPlan plan_for(const Problem& p, std::int32_t threads) {
  CpuPlan plan;
  plan.threads = threads;
  plan.tile_k = kCpuTileK;
  const std::int64_t rows = p.heads_kv > 0 ? p.seqlen_q * (p.heads_q / p.heads_kv) : 0;
  plan.tile_q = std::clamp<std::int64_t>(panel_columns<T>(rows), panel_columns<T>(1), kCpuTileQ);
  Arena scratch(nullptr);
  std::size_t shared_bytes = 0;
  if (p.pass == Pass::forward) {
    plan.tasks = product({p.heads_kv, query_tiles(p, plan.tile_q)});
    choose_splits(p, plan);
    plan.tasks = product({plan.tasks, plan.num_splits});
    ForwardScratch<T>(scratch, p, plan);
    Arena shared(nullptr);
    SharedScratch<T>(shared, p, plan);
    shared_bytes = shared.used();
  } else {
    Arena accumulator(nullptr);
    KeyGradients<T>(accumulator, p);
    plan.chunks = choose_chunks(p, plan, accumulator.used());
    plan.tasks = product({p.batch, p.heads_kv, plan.chunks});
    BackwardScratch<T>(scratch, p, plan);
    if (plan.chunks == 1) {
      KeyGradients<T>(scratch, p);
    } else {
      shared_bytes = static_cast<std::size_t>(
          product({static_cast<std::int64_t>(accumulator.used()), plan.tasks}));
    }
  }
  plan.threads = static_cast<std::int32_t>(std::clamp<std::int64_t>(plan.tasks, 1, threads));
  plan.scratch_bytes = scratch.used();
  plan.shared_bytes = shared_bytes;
  return plan;
}

}  // namespace

CpuPlan plan_cpu(const Problem& problem, std::int32_t threads) {
  return problem.dtype == DType::float64 ? plan_for<double>(problem, std::max(threads, 1))
                                         : plan_for<float>(problem, std::max(threads, 1));
}

}  // namespace onchip::host
