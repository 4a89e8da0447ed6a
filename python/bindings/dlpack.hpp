// SPDX-License-Identifier: Apache-2.0
// The parts of the DLPack ABI (1.x) that taking and handing out arrays needs.
#pragma once

#include <cstdint>

namespace onchip::python::dlpack {

enum DeviceCode : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6
};

struct Version {
  std::uint32_t major, minor;
};

struct Device {
  std::int32_t type, index;
};

struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null from old producers: densely packed
  std::uint64_t byte_offset;
};

/// Behind a capsule named "dltensor".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

inline constexpr std::uint64_t kReadOnly = 1;

/// Behind a capsule named "dltensor_versioned".
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

/// Behind the capsule `type(array).__dlpack_c_exchange_api__`: the same exchange without a Python
/// call. Functions return 0, or -1 with a Python error set.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor*, ManagedVersioned**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from_object)(void*, ManagedVersioned**);
  int (*object_from_managed)(ManagedVersioned*, void**);
  int (*tensor_from_object)(void*, Tensor*);  // borrows; may be null
  int (*current_stream)(std::int32_t, std::int32_t, void**);
};

}  // namespace onchip::python::dlpack
