// SPDX-License-Identifier: Apache-2.0
// The arguments of a call that are no arrays, as the caller gave them.
#pragma once

#include <nanobind/nanobind.h>

#include "onchip/attention.hpp"

namespace onchip::python {

namespace nb = nanobind;

struct GivenOptions {
  nb::handle scale, causal, window, softcap, dropout_p, seed, offset, max_seqlen_q, max_seqlen_k,
      softmax;
};

/// The options that `given` says; raises where an argument is none of those allowed.
Options read_options(const GivenOptions& given);

}  // namespace onchip::python
