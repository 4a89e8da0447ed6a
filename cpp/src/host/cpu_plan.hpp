// SPDX-License-Identifier: Apache-2.0
// Tiles and workspace of the CPU backend: the one description that planner and kernels share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/problem.hpp"

namespace onchip::host {

struct CpuPlan {
  std::int64_t tile_q = 0;           // Br: rows of q, a multiple of every vector length
  std::int64_t tile_k = 0;           // Bc: keys
  std::int32_t threads = 1;          // workers; each owns one scratch slice of the workspace
  std::int64_t tasks = 0;            // work items that workers take in order
  std::int64_t num_splits = 1;       // forward: split-KV parts; backward: dK/dV accumulators of a head
  std::int64_t split_size = 0;       // forward: keys of one part
  std::size_t scratch_bytes = 0;     // of one worker
  std::size_t shared_bytes = 0;      // split partials, dK/dV accumulators
  [[nodiscard]] std::size_t workspace_bytes() const {
    return scratch_bytes * static_cast<std::size_t>(threads) + shared_bytes;
  }
};

/// `threads` is DeviceInfo::units of the CPU.
CpuPlan plan_cpu(const Problem& problem, std::int32_t threads);

}  // namespace onchip::host
