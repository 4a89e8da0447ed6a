// SPDX-License-Identifier: Apache-2.0
// Random attention problems in awkward memory: padded, permuted, reversed and broadcast strides,
// NaN wherever nothing may be read and guard bytes wherever nothing may be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "onchip/attention.hpp"
#include "oracle.hpp"

namespace fixture {

using Rng = std::mt19937_64;

std::int64_t uniform(Rng& rng, std::int64_t low, std::int64_t high);
bool chance(Rng& rng, double probability);

/// How many times as many random problems as usual: ONCHIP_TEST_SCALE, default 1, sanitized 0.2.
double scale();

enum class Layout {
  dense,   // row-major, no gaps
  unique,  // axes in any order, gaps, reversed; outputs and inputs
  read,    // and broadcast: inputs only
};

/// Only q, k, v, out and their gradients must have a last stride of 1.
enum class LastStride { one, any };

/// The memory of one tensor, guards around and between its elements.
class Buffer {
 public:
  Buffer(onchip::DType dtype, const std::vector<std::int64_t>& shape, Layout layout, Rng& rng,
         LastStride last = LastStride::one);
  [[nodiscard]] const onchip::TensorView& view() const { return view_; }

  /// Every element becomes NaN (255 for integers).
  void poison();
  /// True if nothing but elements of the view changed since `poison` or construction.
  [[nodiscard]] bool guards_intact() const;

 private:
  onchip::TensorView view_;
  std::vector<std::byte> memory_, before_;
};

/// The raw bits of a view's elements, in order.
std::vector<std::uint64_t> bits(const onchip::TensorView& view);

/// Writes NaN (or `value`) to the elements for which `where(index)` holds.
void set_where(const onchip::TensorView& view,
               const std::function<bool(std::span<const std::int64_t>)>& where, double value);

/// Standard normal values times `deviation`.
void fill_normal(const onchip::TensorView& view, Rng& rng, double deviation = 1.0);

/// What a random problem may have. `small` keeps extents at most 40.
struct Spec {
  onchip::DType dtype = onchip::DType::float32;
  bool packed = false, paged = false, backward = true, small = false;
  double poison = std::numeric_limits<double>::quiet_NaN();  // where nothing may be read
  bool gpu = false;  // head dimensions are multiples of 8; backward in either order
};

/// Memory for one launch, full of NaN, aligned as the library asks, with guards.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes);
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] bool guards_intact() const;

 private:
  std::vector<std::byte> memory_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Plans and runs one pass.
using Call = std::function<void(const onchip::Attention& attention, onchip::Pass pass)>;

/// The same through the C++ API, in exactly the workspace that the plan asks for.
void call(const onchip::Attention& attention, onchip::Pass pass);

/// An attention problem that owns its memory.
class Problem {
 public:
  onchip::Attention attention;

  onchip::TensorView add(onchip::DType dtype, const std::vector<std::int64_t>& shape, Layout layout,
                         Rng& rng, LastStride last = LastStride::one);
  onchip::TensorView add_output(onchip::DType dtype, const std::vector<std::int64_t>& shape,
                                Layout layout, Rng& rng, LastStride last = LastStride::one);
  onchip::TensorView add_integers(const std::vector<std::int32_t>& values, Rng& rng,
                                  Layout layout = Layout::dense);

  /// The type of lse, dlse, slopes and sinks.
  [[nodiscard]] onchip::DType statistics() const;

  /// Adds out, lse and, if wanted, dout, dq, dk, dv, dbias and dsinks.
  void add_results(bool backward, Layout layout, Rng& rng);

  /// Poisons the outputs of the pass and computes them.
  void forward() { run_with(call, onchip::Pass::forward); }
  void backward() { run_with(call, onchip::Pass::backward); }
  void run_with(const Call& front, onchip::Pass pass);
  [[nodiscard]] oracle::Results results() const;
  [[nodiscard]] bool guards_intact() const;

  /// Fails the test where guards changed or results break the 2x rule.
  void expect_right(bool backward, const std::string& name = "") const;

 private:
  std::vector<std::unique_ptr<Buffer>> inputs_, outputs_;
};

std::unique_ptr<Problem> random_problem(const Spec& spec, Rng& rng);

/// The options and shapes in one line, for messages.
std::string describe(const onchip::Attention& attention);

/// The naive computation's results. Where `got` errs by more than twice what they do, each element
/// is the worst of a few draws of its rounding errors: the greatest of few errors of one draw may
/// be small by luck.
oracle::Results yardstick(const onchip::Attention& attention, onchip::Pass pass,
                          const oracle::Results& exact, const oracle::Results& got);

/// What rounding `out` alone may do to sums over many rows (dbias, dsinks): they cancel, so that
/// the naive computation's one error may be small by luck.
double slack_of_sums(onchip::DType dtype, const oracle::Results& exact);

/// error <= 2 x naive error + slack (float64: rounding only), NaNs and infinities in the same
/// places.
void expect_close(const std::string& name, onchip::DType dtype, const oracle::Tensor& got,
                  const oracle::Tensor& exact, const oracle::Tensor& naive, double slack = 1e-5);
/// lse: within 1e-4 (float64: rounding only).
void expect_close_lse(const std::string& name, onchip::DType dtype, const oracle::Tensor& got,
                      const oracle::Tensor& exact);

}  // namespace fixture
