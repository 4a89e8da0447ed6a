// SPDX-License-Identifier: Apache-2.0
// Elements of every type, and views as dense tensors of double.
#include "oracle.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace oracle {
namespace {

using onchip::DType;
using onchip::TensorView;
using Index = std::int64_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A binary format of IEEE 754's kind.
struct Format {
  int exponent_bits, fraction_bits;
  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] int specials() const { return (1 << exponent_bits) - 1; }
};

constexpr Format kHalf{5, 10};
constexpr Format kBfloat{8, 7};

double decode_bits(Format format, std::uint16_t bits) {
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = (bits >> format.fraction_bits) & format.specials();
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == format.specials()) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * kInfinity;
  }
  const int normal = exponent == 0 ? 0 : 1 << format.fraction_bits;
  return sign * std::ldexp(normal + fraction,
                           std::max(exponent, 1) - format.bias() - format.fraction_bits);
}

std::uint16_t encode_bits(Format format, double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = format.specials() << format.fraction_bits;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | infinity | (1 << (format.fraction_bits - 1)));
  }
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  // In units of its last place the value is an integer; a carry moves on into the exponent.
  const int exponent = value == 0 ? 1 : std::max(std::ilogb(value) + format.bias(), 1);
  const double unit = std::ldexp(1.0, exponent - format.bias() - format.fraction_bits);
  const double significand = std::nearbyint(std::abs(value) / unit);
  const double bits = significand + static_cast<double>((exponent - 1) << format.fraction_bits);
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::min<double>(bits, infinity)));
}

}  // namespace

double decode(DType dtype, const void* element) {
  const auto get = [element]<class T>(T value) {
    std::memcpy(&value, element, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::float64: return get(double{});
    case DType::float32: return get(float{});
    case DType::float16: return decode_bits(kHalf, get(std::uint16_t{}));
    case DType::bfloat16: return decode_bits(kBfloat, get(std::uint16_t{}));
    case DType::int32: return get(std::int32_t{});
    case DType::uint8: return get(std::uint8_t{});
    case DType::none: break;
  }
  return 0;
}

void encode(DType dtype, void* element, double value) {
  const auto put = [element](auto x) { std::memcpy(element, &x, sizeof(x)); };
  switch (dtype) {
    case DType::float64: put(value); break;
    case DType::float32: put(static_cast<float>(value)); break;
    case DType::float16: put(encode_bits(kHalf, value)); break;
    case DType::bfloat16: put(encode_bits(kBfloat, value)); break;
    case DType::int32: put(static_cast<std::int32_t>(value)); break;
    case DType::uint8: put(static_cast<std::uint8_t>(value)); break;
    case DType::none: break;
  }
}

double rounded(DType dtype, double value) {
  if (dtype == DType::float64) return value;
  std::array<unsigned char, 8> element{};
  encode(dtype, element.data(), value);
  return decode(dtype, element.data());
}

void* address(const TensorView& view, std::span<const std::int64_t> index) {
  Index offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * view.stride[axis];
  return static_cast<char*>(view.data) + offset * onchip::size_of(view.dtype);
}

Tensor::Tensor(std::vector<std::int64_t> extents, double fill) : shape(std::move(extents)) {
  Index count = 1;
  for (Index extent : shape) count *= extent;
  values.assign(static_cast<std::size_t>(count), fill);
}

double& Tensor::operator()(std::initializer_list<std::int64_t> index) {
  Index offset = 0;
  std::size_t axis = 0;
  for (Index i : index) offset = offset * shape[axis++] + i;
  return values[static_cast<std::size_t>(offset)];
}

Tensor read(const TensorView& view) {
  Tensor tensor;
  if (!view.given()) return tensor;
  tensor = Tensor({view.shape.begin(), view.shape.begin() + view.ndim});
  std::size_t at = 0;
  for_each_index(tensor.shape, [&](std::span<const Index> index) {
    tensor.values[at++] = decode(view.dtype, address(view, index));
  });
  return tensor;
}

void write(const TensorView& view, const Tensor& tensor) {
  std::size_t at = 0;
  for_each_index(tensor.shape, [&](std::span<const Index> index) {
    encode(view.dtype, address(view, index), tensor.values[at++]);
  });
}

}  // namespace oracle
