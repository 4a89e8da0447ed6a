// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/problem.hpp"

namespace onchip::cpu {

/// Reads cu_seqlens, seqused and block_table, and throws `Error` (invalid_argument) naming the
/// entry that would lead outside of the tensors. Runs before anything is written.
void check_lengths(const host::Problem& problem, const host::Operands& operands);

}  // namespace onchip::cpu
