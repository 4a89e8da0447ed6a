// SPDX-License-Identifier: Apache-2.0
// Exact Python types within their range are read here, which is quick. Anything else goes through
// the checks of onchip._scalars, which take NumPy's numbers too and raise naming the argument.
#include "options.hpp"

#include <nanobind/stl/pair.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

namespace onchip::python {
namespace {

using Window = std::pair<std::int64_t, std::int64_t>;
using Seed = std::pair<std::uint64_t, std::uint64_t>;

template <class T, class... Arguments>
T checked(const char* check, const Arguments&... arguments) {
  return nb::cast<T>(nb::module_::import_("onchip._scalars").attr(check)(arguments...));
}

bool as_bool(const char* name, nb::handle x) {
  if (x.ptr() == Py_True) return true;
  if (x.ptr() == Py_False) return false;
  return checked<bool>("as_bool", name, x);
}

double as_float(const char* name, nb::handle x) {
  if (PyFloat_CheckExact(x.ptr())) {
    const double value = PyFloat_AsDouble(x.ptr());
    if (std::isfinite(value)) return value;
  }
  return checked<double>("as_float", name, x);
}

/// Whether `x` is an int from `least` to 2^63 - 1 and of no subclass; then `value` is it.
bool read_int(nb::handle x, std::int64_t least, std::int64_t& value) {
  if (!PyLong_CheckExact(x.ptr())) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
  return overflow == 0 && value >= least;
}

std::int64_t as_length(const char* name, nb::handle x) {
  std::int64_t value = 0;
  if (x.is_none() || read_int(x, 0, value)) return value;
  return checked<std::int64_t>("as_length", name, x);
}

Window as_window(nb::handle x) {
  if (PyTuple_CheckExact(x.ptr()) && PyTuple_Size(x.ptr()) == 2) {
    Window sides;
    if (read_int(PyTuple_GetItem(x.ptr(), 0), -1, sides.first) &&
        read_int(PyTuple_GetItem(x.ptr(), 1), -1, sides.second)) {
      return sides;
    }
  }
  return checked<Window>("as_window", x);
}

Seed as_seed(nb::handle seed, nb::handle offset, double dropout_p) {
  std::int64_t key = 0, start = 0;
  if ((seed.is_none() ? !(dropout_p > 0) : read_int(seed, 0, key)) && read_int(offset, 0, start)) {
    return {static_cast<std::uint64_t>(key), static_cast<std::uint64_t>(start)};
  }
  return checked<Seed>("as_seed", seed, offset, dropout_p);
}

Softmax as_softmax(nb::handle x) {
  if (PyUnicode_CheckExact(x.ptr()) && PyUnicode_CompareWithASCIIString(x.ptr(), "auto") == 0) {
    return Softmax::automatic;
  }
  const auto choice = checked<nb::str>("as_choice", "softmax", x, nb::make_tuple("auto", "safe"));
  return PyUnicode_CompareWithASCIIString(choice.ptr(), "safe") == 0 ? Softmax::safe
                                                                     : Softmax::automatic;
}

}  // namespace

Options read_options(const GivenOptions& given) {
  Options options;
  std::tie(options.window_left, options.window_right) = as_window(given.window);
  options.dropout_p = as_float("dropout_p", given.dropout_p);
  std::tie(options.seed, options.offset) = as_seed(given.seed, given.offset, options.dropout_p);
  if (!given.scale.is_none()) options.scale = as_float("scale", given.scale);
  options.causal = as_bool("causal", given.causal);
  options.softcap = as_float("softcap", given.softcap);
  options.max_seqlen_q = as_length("max_seqlen_q", given.max_seqlen_q);
  options.max_seqlen_k = as_length("max_seqlen_k", given.max_seqlen_k);
  options.softmax = as_softmax(given.softmax);
  return options;
}

}  // namespace onchip::python
