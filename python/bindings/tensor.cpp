// SPDX-License-Identifier: Apache-2.0
#include "tensor.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace onchip::python {
namespace {

constexpr const char* kLegacyName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";
constexpr std::size_t kAlignment = 64;  // what JAX needs to take memory without a copy

DType dtype_of(const char* name, dlpack::DataType type) {
  if (type.lanes == 1) {
    if (type.code == dlpack::kFloat && type.bits == 64) return DType::float64;
    if (type.code == dlpack::kFloat && type.bits == 32) return DType::float32;
    if (type.code == dlpack::kFloat && type.bits == 16) return DType::float16;
    if (type.code == dlpack::kBfloat && type.bits == 16) return DType::bfloat16;
    if (type.code == dlpack::kInt && type.bits == 32) return DType::int32;
    if (type.code == dlpack::kUInt && type.bits == 8) return DType::uint8;
  }
  std::string found = "code " + std::to_string(type.code);
  switch (type.code) {
    case dlpack::kInt: found = "int" + std::to_string(type.bits); break;
    case dlpack::kUInt: found = "uint" + std::to_string(type.bits); break;
    case dlpack::kComplex: found = "complex" + std::to_string(type.bits); break;
    case dlpack::kBool: found = "bool"; break;
    default: break;
  }
  throw nb::type_error((std::string(name) + ": dtype " + found +
                        " is none of float64, float32, float16, bfloat16 and int32")
                           .c_str());
}

dlpack::DataType dlpack_type(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::bfloat16: return {dlpack::kBfloat, bits, 1};
    case DType::int32: return {dlpack::kInt, bits, 1};
    case DType::uint8: return {dlpack::kUInt, bits, 1};
    default: return {dlpack::kFloat, bits, 1};
  }
}

onchip::Device device_of(const char* name, dlpack::Device device) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost: return {DeviceType::cpu, 0};
    case dlpack::kCuda:
    case dlpack::kCudaManaged: return {DeviceType::cuda, device.index};
    default: break;
  }
  PyErr_Format(PyExc_NotImplementedError,
               "%s: lies on a device of DLPack type %d; expected CPU or CUDA memory", name,
               static_cast<int>(device.type));
  throw nb::python_error();
}

TensorView view_of(const char* name, const dlpack::Tensor& source, DType dtype) {
  if (source.ndim < 1 || source.ndim > kMaxDims) {
    PyErr_Format(PyExc_ValueError, "%s: %d dimensions, expected 1 to %d", name,
                 static_cast<int>(source.ndim), kMaxDims);
    throw nb::python_error();
  }
  TensorView view;
  view.dtype = dtype == DType::none ? dtype_of(name, source.dtype) : dtype;
  view.device = device_of(name, source.device);
  view.ndim = source.ndim;
  std::int64_t dense = 1;
  for (auto axis = static_cast<std::size_t>(source.ndim); axis-- > 0;) {
    view.shape[axis] = source.shape[axis];
    view.stride[axis] = source.strides != nullptr ? source.strides[axis] : dense;
    dense *= source.shape[axis];
  }
  // Pointers of empty arrays are whatever the producer had at hand.
  if (dense != 0) view.data = static_cast<std::byte*>(source.data) + source.byte_offset;
  return view;
}

/// Fills the view from a capsule, which stays the owner: it is borrowed, never consumed.
void take_capsule(Tensor& tensor, nb::handle capsule, DType dtype) {
  const char* name = tensor.name.c_str();
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName)) {
    const auto* managed = static_cast<const dlpack::ManagedVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), kVersionedName));
    if (managed->version.major != 1) {
      PyErr_Format(PyExc_BufferError, "%s: made with DLPack %u, expected version 1", name,
                   static_cast<unsigned>(managed->version.major));
      throw nb::python_error();
    }
    tensor.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    tensor.view = view_of(name, managed->tensor, dtype);
  } else if (PyCapsule_IsValid(capsule.ptr(), kLegacyName)) {
    const auto* managed =
        static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), kLegacyName));
    tensor.view = view_of(name, managed->tensor, dtype);
  } else {
    throw nb::type_error((tensor.name + ": __dlpack__ returned a capsule that holds no array; "
                                        "expected one that nobody consumed")
                             .c_str());
  }
}

const dlpack::ExchangeApi& exchange_of(nb::handle capsule) {
  const auto* api = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) throw nb::python_error();
  return *api;
}

dlpack::Tensor borrow(const char* name, nb::handle source, const dlpack::ExchangeApi& api) {
  dlpack::Tensor borrowed{};
  if (api.tensor_from_object(source.ptr(), &borrowed) == 0) return borrowed;
  nb::python_error cause;
  std::string why = cause.what();
  why.resize(std::min(why.find('\n'), why.size()));  // PyTorch appends a C++ stack
  nb::raise_from(cause, PyExc_TypeError, "%s: is no array with memory of its own: %s", name,
                 why.c_str());
}

/// What a capsule handed out by Buffer keeps: the memory and the arrays that DLPack points to.
template <class Managed>
struct Lent {
  Managed managed{};
  std::shared_ptr<std::byte[]> memory;
  std::array<std::int64_t, kMaxDims> shape{}, stride{};
};

template <class Managed>
void return_lent(Managed* managed) {
  delete static_cast<Lent<Managed>*>(managed->context);
}

template <class Managed>
nb::object lend(const TensorView& view, std::shared_ptr<std::byte[]> memory, const char* name,
                void (*destroy)(PyObject*)) {
  auto lent = std::make_unique<Lent<Managed>>();
  lent->memory = std::move(memory);
  lent->shape = view.shape;
  lent->stride = view.stride;
  lent->managed.context = lent.get();
  lent->managed.deleter = &return_lent<Managed>;
  if constexpr (std::is_same_v<Managed, dlpack::ManagedVersioned>) lent->managed.version = {1, 1};
  lent->managed.tensor = {
      view.data,          {dlpack::kCpu, 0},   view.ndim, dlpack_type(view.dtype),
      lent->shape.data(), lent->stride.data(), 0};
  PyObject* capsule = PyCapsule_New(&lent->managed, name, destroy);
  if (capsule == nullptr) throw nb::python_error();
  static_cast<void>(lent.release());
  return nb::steal(capsule);
}

/// Runs when a capsule dies: one that was consumed has another name and is left alone.
template <class Managed>
void destroy_capsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  return_lent(static_cast<Managed*>(PyCapsule_GetPointer(capsule, name)));
}

}  // namespace

nb::tuple tuple_of(const std::array<std::int64_t, kMaxDims>& values, std::int32_t count) {
  nb::tuple tuple = nb::steal<nb::tuple>(PyTuple_New(count));
  if (!tuple.is_valid()) throw nb::python_error();
  for (std::int32_t i = 0; i < count; ++i) {
    nb::object value = nb::cast(values[static_cast<std::size_t>(i)]);
    PyTuple_SetItem(tuple.ptr(), i, value.release().ptr());
  }
  return tuple;
}

Buffer::Buffer(std::vector<std::int64_t> shape, DType dtype) {
  if (shape.size() > static_cast<std::size_t>(kMaxDims))
    throw nb::value_error("shape: more than 5 axes");
  view_.dtype = dtype;
  view_.ndim = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    view_.shape[axis] = shape[axis];
    view_.stride[axis] = stride;
    if (shape[axis] < 0) throw nb::value_error("shape: negative");
    if (__builtin_mul_overflow(stride, shape[axis], &stride)) throw std::bad_alloc();
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(stride, size_of(dtype), &bytes)) throw std::bad_alloc();
  auto* memory = static_cast<std::byte*>(
      ::operator new(static_cast<std::size_t>(bytes), std::align_val_t(kAlignment)));
  memory_ = std::shared_ptr<std::byte[]>(
      memory, [](std::byte* p) { ::operator delete(p, std::align_val_t(kAlignment)); });
  view_.data = memory;
}

nb::object Buffer::dlpack(bool versioned) const {
  if (versioned) {
    return lend<dlpack::ManagedVersioned>(view_, memory_, kVersionedName, [](PyObject* capsule) {
      destroy_capsule<dlpack::ManagedVersioned>(capsule, kVersionedName);
    });
  }
  return lend<dlpack::Managed>(view_, memory_, kLegacyName, [](PyObject* capsule) {
    destroy_capsule<dlpack::Managed>(capsule, kLegacyName);
  });
}

DType dtype_named(const char* name, const char* dtype) {
  for (DType candidate : {DType::float32, DType::bfloat16, DType::float16, DType::float64,
                          DType::int32, DType::uint8}) {
    if (std::strcmp(dtype, name_of(candidate)) == 0) return candidate;
  }
  throw nb::type_error((std::string(name) + ": dtype " + dtype +
                        " is none of float64, float32, float16, bfloat16 and int32")
                           .c_str());
}

Tensor take(const char* name, nb::handle source, nb::handle exchange, DType dtype) {
  Tensor tensor;
  tensor.name = name;
  tensor.owner = nb::borrow(source);
  if (exchange.is_valid() && !exchange.is_none()) {
    tensor.view = view_of(name, borrow(name, source, exchange_of(exchange)), dtype);
  } else if (const Buffer* buffer; nb::try_cast<const Buffer*>(source, buffer)) {
    tensor.view = buffer->view();
  } else {
    take_capsule(tensor, source, dtype);
  }
  return tensor;
}

std::uintptr_t current_stream(nb::handle source, nb::handle exchange) {
  const dlpack::ExchangeApi& api = exchange_of(exchange);
  const dlpack::Device device = borrow("array", source, api).device;
  void* stream = nullptr;
  if (api.current_stream(device.type, device.index, &stream) != 0) throw nb::python_error();
  return reinterpret_cast<std::uintptr_t>(stream);
}

Tensor allocate(const char* name, std::int64_t bytes, onchip::Device device, nb::handle exchange) {
  Tensor tensor;
  tensor.name = name;
  const std::int32_t type = device.type == DeviceType::cpu ? dlpack::kCpu : dlpack::kCuda;
  dlpack::Tensor wanted{
      nullptr, {type, device.index}, 1, dlpack_type(DType::uint8), &bytes, nullptr, 0};
  dlpack::ManagedVersioned* made = nullptr;
  const auto ignore = [](void*, const char*, const char*) {};
  const dlpack::ExchangeApi& api = exchange_of(exchange);
  if (api.allocate == nullptr) return tensor;
  {
    const nb::gil_scoped_release release;
    if (api.allocate(&wanted, &made, nullptr, ignore) != 0) return tensor;
  }
  PyObject* owner = PyCapsule_New(made, kVersionedName, [](PyObject* capsule) {
    auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, kVersionedName));
    managed->deleter(managed);
  });
  if (owner == nullptr) {
    made->deleter(made);
    throw nb::python_error();
  }
  tensor.owner = nb::steal(owner);
  tensor.view = view_of(name, made->tensor, DType::uint8);
  return tensor;
}

Tensor planned(const char* name, const std::vector<std::int64_t>& shape, DType dtype,
               onchip::Device device) {
  if (shape.empty() || shape.size() > static_cast<std::size_t>(kMaxDims)) {
    throw nb::value_error((std::string(name) + ": " + std::to_string(shape.size()) +
                           " dimensions, expected 1 to " + std::to_string(kMaxDims))
                              .c_str());
  }
  Tensor tensor;
  tensor.name = name;
  tensor.view.dtype = dtype;
  tensor.view.device = device;
  tensor.view.ndim = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    tensor.view.shape[axis] = shape[axis];
    tensor.view.stride[axis] = stride;
    if (__builtin_mul_overflow(stride, shape[axis], &stride)) {
      throw nb::value_error((std::string(name) + ": more than 2^63 elements").c_str());
    }
  }
  return tensor;
}

std::vector<Tensor> split(const Tensor& stacked) {
  const TensorView& whole = stacked.view;
  if (whole.ndim < 2) {
    throw nb::value_error((stacked.name + ": 1 dimension, expected the parts along the first of "
                                          "at least 2")
                              .c_str());
  }
  Tensor part = stacked;
  part.view.ndim = whole.ndim - 1;
  std::shift_left(part.view.shape.begin(), part.view.shape.end(), 1);
  std::shift_left(part.view.stride.begin(), part.view.stride.end(), 1);
  std::vector<Tensor> parts(static_cast<std::size_t>(whole.shape[0]), part);
  if (whole.data == nullptr) return parts;
  for (std::size_t n = 0; n < parts.size(); ++n) {
    parts[n].view.data = static_cast<std::byte*>(whole.data) +
                         static_cast<std::int64_t>(n) * whole.stride[0] * size_of(whole.dtype);
  }
  return parts;
}

namespace {

void bind_buffer(nb::module_& m) {
  nb::class_<Buffer>(m, "Buffer",
                     "Memory of the library's own, given to callers whose arrays bring no way to "
                     "allocate one:\nany framework's from_dlpack takes it without a copy.")
      .def(
          "__init__",
          [](Buffer* self, std::vector<std::int64_t> shape, const char* dtype) {
            new (self) Buffer(std::move(shape), dtype_named("dtype", dtype));
          },
          nb::arg("shape"), nb::arg("dtype"))
      .def_prop_ro("shape", [](const Buffer& b) { return tuple_of(b.view().shape, b.view().ndim); })
      .def_prop_ro("dtype", [](const Buffer& b) { return name_of(b.view().dtype); })
      .def(
          "__dlpack__",
          [](const Buffer& b, const nb::kwargs& kwargs) {
            nb::object version =
                kwargs.contains("max_version") ? kwargs["max_version"] : nb::none();
            return b.dlpack(!version.is_none() && nb::cast<int>(version[0]) >= 1);
          },
          nb::arg("kwargs"))
      .def("__dlpack_device__", [](const Buffer&) { return nb::make_tuple(int{dlpack::kCpu}, 0); });
}

}  // namespace

void bind_tensor(nb::module_& m) {
  bind_buffer(m);
  m.def("current_stream", &current_stream, nb::arg("source"), nb::arg("exchange"),
        "The CUDA stream that an array's library works on now, by the exchange API of its type.");
  nb::class_<Tensor>(m, "Tensor", "One argument of a call: a view of the caller's memory.")
      .def(
          "__init__",
          [](Tensor* self, const char* name, nb::handle source, nb::handle exchange,
             nb::handle dtype) {
            const DType given =
                dtype.is_none() ? DType::none : dtype_named(name, nb::cast<const char*>(dtype));
            new (self) Tensor(take(name, source, exchange, given));
          },
          nb::arg("name"), nb::arg("source"), nb::arg("exchange").none() = nb::none(),
          nb::arg("dtype").none() = nb::none())
      .def_static(
          "planned",
          [](const char* name, const std::vector<std::int64_t>& shape, const char* dtype, bool cuda,
             std::int32_t index) {
            return planned(name, shape, dtype_named(name, dtype),
                           {cuda ? DeviceType::cuda : DeviceType::cpu, index});
          },
          nb::arg("name"), nb::arg("shape"), nb::arg("dtype"), nb::arg("cuda"), nb::arg("index"))
      .def_static(
          "at",
          [](const char* name, std::uintptr_t address, const std::vector<std::int64_t>& shape,
             const std::vector<std::int64_t>& strides, const char* dtype, bool read_only,
             nb::object owner) {
            Tensor tensor = planned(name, shape, dtype_named(name, dtype), {});
            if (strides.size() != shape.size()) throw nb::value_error("strides: one for each axis");
            std::copy(strides.begin(), strides.end(), tensor.view.stride.begin());
            tensor.view.data = reinterpret_cast<void*>(address);
            tensor.read_only = read_only;
            tensor.owner = std::move(owner);
            return tensor;
          },
          nb::arg("name"), nb::arg("address"), nb::arg("shape"), nb::arg("strides"),
          nb::arg("dtype"), nb::arg("read_only"), nb::arg("owner"))
      .def("split", &split)
      .def_ro("name", &Tensor::name)
      .def_ro("read_only", &Tensor::read_only)
      .def_prop_ro("address",
                   [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.view.data); })
      .def_prop_ro("ndim", [](const Tensor& t) { return t.view.ndim; })
      .def_prop_ro("shape", [](const Tensor& t) { return tuple_of(t.view.shape, t.view.ndim); })
      .def_prop_ro("strides", [](const Tensor& t) { return tuple_of(t.view.stride, t.view.ndim); })
      .def_prop_ro("dtype", [](const Tensor& t) { return name_of(t.view.dtype); })
      .def_prop_ro("device", [](const Tensor& t) {
        return nb::make_tuple(t.view.device.type == DeviceType::cpu ? "cpu" : "cuda",
                              t.view.device.index);
      });
}

}  // namespace onchip::python
