// SPDX-License-Identifier: Apache-2.0
// How a problem is going to be computed, and what that is predicted to cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onchip/export.h"
#include "onchip/tensor.hpp"

namespace onchip {

enum class Pass : std::int32_t { forward = 0, backward = 1 };

/// The facts of a device that planning needs.
struct DeviceInfo {
  std::string name;  ///< "H200", or the CPU's instruction set.
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;               ///< -1: a device known by name, none of this machine.
  std::int32_t compute_capability = 0;  ///< 90 for sm_90; 0 for a CPU.
  std::int32_t units = 1;               ///< Streaming multiprocessors, or threads of a CPU.
  std::int64_t on_chip_bytes = 0;       ///< Shared memory of one block, or L2 of one core.
  std::int64_t l2_bytes = 0;            ///< L2 of a GPU, last-level cache of a CPU.
  std::int64_t memory_bytes = 0;        ///< Device memory.
  double bandwidth = 0;                 ///< Device memory, bytes per second.
  double flops_16bit = 0;               ///< FLOP per second, float16 and bfloat16.
  double flops_float32 = 0;             ///< FLOP per second.
  double flops_float64 = 0;             ///< FLOP per second.
  /// Newest family of GPU kernels to plan with: 80 or 90; 0: the newest that this version has for
  /// the compute capability.
  std::int32_t family = 0;
};

/// Facts of a device by name: "cpu" or "cuda:<index>" of this machine, or one of
/// `known_devices()`, in any case. A plan for a known device runs on a device of this machine that
/// has its compute capability, and its number of multiprocessors where the plan depends on that.
/// Throws `Error` (invalid_argument) that lists the known names.
ONCHIP_API DeviceInfo device_info(std::string_view name);

/// Names that `device_info` takes besides "cpu": A100, L40S, RTX 4090, H100, H200, B200.
ONCHIP_API std::vector<std::string> known_devices();

/// Predicted cost. Bytes are those read from and written to device memory.
struct Cost {
  double flops = 0;  ///< FLOP of the matrix products, visible scores only.
  double bytes_read = 0;
  double bytes_written = 0;
  double intensity = 0;  ///< FLOP per byte.
  double seconds = 0;    ///< On the roofline: max(flops / peak, bytes / bandwidth).
  bool compute_bound = false;
  double peak_bytes = 0;  ///< Memory beyond the inputs: outputs, lse, workspace.
};

/// Everything a plan decided. Plain data; see Plan::explain() for words and a picture.
struct PlanInfo {
  Pass pass = Pass::forward;
  DeviceInfo device;
  std::string backend;             ///< "cpu", "sm80" or "sm90".
  std::string kernel;              ///< Name of the instance, e.g. "cpu_fwd_float32".
  std::int64_t tile_q = 0;         ///< Br: query rows of a tile.
  std::int64_t tile_k = 0;         ///< Bc: keys of a tile.
  std::int32_t stages = 1;         ///< Buffers of K; explain() has all others.
  std::int32_t warps = 0;          ///< Warps of a block; 0 on a CPU.
  std::int64_t on_chip_bytes = 0;  ///< Fast memory of one block (shared memory; scratch on a CPU).
  std::int64_t grid = 0;           ///< Blocks launched (tasks on a CPU).
  std::int64_t num_splits = 1;     ///< Split-KV parts of a query tile.
  std::int64_t split_size = 0;     ///< Keys of one part.
  std::int32_t threads = 0;        ///< Workers on a CPU; 0 on a GPU.
  std::size_t workspace_bytes = 0;
  Cost cost;      ///< Of this plan.
  Cost standard;  ///< Of the standard algorithm, which materialises S and P.
};

namespace detail {
struct PlanImpl;
}

/// An immutable plan; copies share one state, so copying is cheap and any thread may use it.
class ONCHIP_API Plan {
 public:
  /// For the library's own use; users call onchip::plan().
  explicit Plan(std::shared_ptr<const detail::PlanImpl> impl) : impl_(std::move(impl)) {}

  [[nodiscard]] const PlanInfo& info() const;
  [[nodiscard]] std::size_t workspace_bytes() const { return info().workspace_bytes; }

  /// The plan in words, with its numbers and a picture of the tiles of one head.
  [[nodiscard]] std::string explain() const;

  /// The plan as one JSON object with the field names of PlanInfo.
  [[nodiscard]] std::string json() const;

  [[nodiscard]] const detail::PlanImpl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const detail::PlanImpl> impl_;
};

}  // namespace onchip
