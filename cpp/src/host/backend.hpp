// SPDX-License-Identifier: Apache-2.0
// What a backend is to the rest of the library. `api/` registers the backends it was built with, so
// that nothing here names one of them.
#pragma once

#include <cstdint>
#include <span>

#include "host/plan_impl.hpp"
#include "host/problem.hpp"

namespace onchip::host {

/// One part of merge_states: its memory and strides.
struct MergePart {
  const void* out = nullptr;
  const void* lse = nullptr;
  Strides out_strides, lse_strides;
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// Facts of the device, read once and kept.
  [[nodiscard]] virtual const DeviceInfo& device(std::int32_t index) const = 0;

  /// `workspace` holds plan.info.workspace_bytes bytes. Checks the contents of length arrays where
  /// it can read them, before anything is written.
  virtual void forward(const detail::PlanImpl& plan, const Operands& operands, void* workspace,
                       Stream stream) const = 0;
  virtual void backward(const detail::PlanImpl& plan, const Operands& operands, void* workspace,
                        Stream stream) const = 0;
  virtual void merge_states(const MergeProblem& problem, std::span<const MergePart> parts,
                            void* out, void* lse, Stream stream) const = 0;
  /// `mask` is dense-strided uint8 (B, H, Sq, Sk) with the strides in `mask`.
  virtual void dropout_mask(const TensorView& mask, std::uint32_t threshold, std::uint64_t seed,
                            std::uint64_t offset, Stream stream) const = 0;
};

/// The backend for memory of this type; throws `Error` (unsupported) where the build has none,
/// naming the argument that asked for it.
const Backend& backend_for(DeviceType type, const char* argument = "q");

}  // namespace onchip::host
