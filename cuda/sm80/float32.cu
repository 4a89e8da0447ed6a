// SPDX-License-Identifier: Apache-2.0
// The float32 kernels as the host sees them.
#include "sm80/float32.cuh"

#include "common/kernel.hpp"

namespace onchip::cuda {
namespace {

/// A block works on kRowsPerBlock rows, or keys.
struct RowTraits {
  static constexpr int kThreads = 32 * kRowsPerBlock;
  static constexpr int kBr = kRowsPerBlock, kBc = kRowsPerBlock;
};

}  // namespace

Kernel sm80_fwd_float32_d256() {
  return describe<RowTraits>("sm80_fwd_float32_d256", &sm80::float32_forward, 0);
}
Kernel sm80_bwd_float32_d256() {
  return describe<RowTraits>("sm80_bwd_float32_d256", &sm80::float32_lse_rest, 0);
}
Kernel sm80_bwd_float32_d256_part2() {
  return describe<RowTraits>("sm80_bwd_float32_d256", &sm80::float32_dkdv, 0);
}
Kernel sm80_dq_float32_d256() {
  return describe<RowTraits>("sm80_dq_float32_d256", &sm80::float32_dq, 0);
}
Kernel sm80_dbias_float32_d256() {
  return describe<RowTraits>("sm80_dbias_float32_d256", &sm80::float32_dbias, 0);
}

}  // namespace onchip::cuda
