// SPDX-License-Identifier: Apache-2.0
// onchip._core: the C++ API for python/onchip, which gives it its public shape.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>

#include "call.hpp"
#include "onchip/status.hpp"
#include "onchip/threads.hpp"
#include "plan.hpp"
#include "tensor.hpp"

namespace {

PyObject* exception_for(onchip::ErrorCode code) {
  switch (code) {
    case onchip::ErrorCode::invalid_argument: return PyExc_ValueError;
    case onchip::ErrorCode::unsupported: return PyExc_NotImplementedError;
    case onchip::ErrorCode::out_of_memory: return PyExc_MemoryError;
    case onchip::ErrorCode::device: break;
  }
  return PyExc_RuntimeError;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const onchip::Error& error) {
    PyErr_SetString(exception_for(error.code()), error.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nanobind::register_exception_translator(&translate);
  m.attr("__version__") = ONCHIP_VERSION;
  onchip::python::bind_tensor(m);
  onchip::python::bind_plan(m);
  onchip::python::bind_call(m);
  m.def("set_num_threads", &onchip::set_num_threads, nanobind::arg("count"));
  m.def("num_threads", &onchip::num_threads);
  m.def("cpu_isa", &onchip::cpu_isa);
}
