// SPDX-License-Identifier: Apache-2.0
// Attention written straight from its formulas: it materialises S and shares no code with the
// library. In float64 it is the reference; in a narrower type (every matrix rounded to it, float32
// accumulation) it is the naive computation of the 2x rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "onchip/attention.hpp"

namespace oracle {

/// The double nearest to a value of `dtype`, and the other way about (to nearest even).
double decode(onchip::DType dtype, const void* element);
void encode(onchip::DType dtype, void* element, double value);

/// `value` rounded to `dtype`.
double rounded(onchip::DType dtype, double value);

/// Address of one element of a view, indexed by as many coordinates as it has axes.
void* address(const onchip::TensorView& view, std::span<const std::int64_t> index);

/// A dense row-major tensor.
struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  Tensor() = default;
  explicit Tensor(std::vector<std::int64_t> extents, double fill = 0.0);
  [[nodiscard]] bool given() const { return !shape.empty(); }
  double& operator()(std::initializer_list<std::int64_t> index);
};

/// A view's elements, in order. `Tensor::shape` is empty where the view is not given.
Tensor read(const onchip::TensorView& view);
void write(const onchip::TensorView& view, const Tensor& tensor);

/// Calls `visit(index)` for each element of the shape in row-major order.
template <class Visit>
void for_each_index(std::span<const std::int64_t> shape, Visit visit) {
  for (std::int64_t extent : shape) {
    if (extent == 0) return;
  }
  std::vector<std::int64_t> index(shape.size(), 0);
  while (true) {
    visit(std::span<const std::int64_t>(index));
    std::size_t axis = shape.size();
    while (axis > 0 && ++index[axis - 1] == shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

/// The contract's rule 4 for row i and key j among `rows` and `keys` that count.
bool visible(const onchip::Options& options, std::int64_t rows, std::int64_t keys, std::int64_t i,
             std::int64_t j);

/// Whether dropout keeps weight (i, j) of head `head` = b * Hq + h.
bool kept(const onchip::Options& options, std::int64_t head, std::int64_t i, std::int64_t j);

struct Results {
  Tensor out, lse, dq, dk, dv, dbias, dsinks;
  double spread = 0;  // sum of (dout * out)^2: what rounding out alone does to sums of D_i
};

/// out and lse; with `Pass::backward` the gradients too. Reads the inputs of `attention`, and of
/// its outputs only the shapes. Values are rounded to those of `precision` divided by `grid`: with
/// another grid the same computation makes other rounding errors of the same size.
Results attention(const onchip::Attention& attention, onchip::Pass pass,
                  onchip::DType precision = onchip::DType::float64, double grid = 1.0);

}  // namespace oracle
