// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace onchip::python {

namespace nb = nanobind;

void bind_plan(nb::module_& m);

}  // namespace onchip::python
