// SPDX-License-Identifier: Apache-2.0
#include "fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>

#include "onchip/plan.hpp"

namespace fixture {

using onchip::DType;
using onchip::Pass;
using onchip::TensorView;
using oracle::Tensor;
using Index = std::int64_t;
using Shape = std::vector<Index>;

namespace {
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kGuard = 256;

Shape shape_of(const TensorView& view) {
  return {view.shape.begin(), view.shape.begin() + view.ndim};
}

std::size_t bytes_of(const TensorView& view) {
  return static_cast<std::size_t>(onchip::size_of(view.dtype));
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::float16: return 0x1p-11;
    case DType::bfloat16: return 0x1p-8;
    case DType::float32: return 0x1p-24;
    default: return 0x1p-53;
  }
}
}  // namespace

Index uniform(Rng& rng, Index low, Index high) {
  return low + static_cast<Index>(rng() % static_cast<std::uint64_t>(high - low + 1));
}

bool chance(Rng& rng, double probability) {
  return static_cast<double>(rng() % 1000000) < probability * 1e6;
}

double scale() {
  const char* text = std::getenv("ONCHIP_TEST_SCALE");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kUsual = 0.2;
#else
  constexpr double kUsual = 1.0;
#endif
  return text == nullptr ? kUsual : std::strtod(text, nullptr);
}

Buffer::Buffer(DType dtype, const Shape& shape, Layout layout, Rng& rng, LastStride last_stride) {
  view_.dtype = dtype;
  view_.ndim = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view_.shape.begin());
  // Strides grow along `order`; the last axis comes first where its stride must be 1.
  const bool free = last_stride == LastStride::any && layout != Layout::dense;
  std::vector<std::size_t> order;
  for (std::size_t axis = shape.size(); axis-- > 0;) order.push_back(axis);
  if (layout != Layout::dense) std::shuffle(order.begin() + (free ? 0 : 1), order.end(), rng);
  const auto gap = [&] { return layout == Layout::dense ? 0 : uniform(rng, 0, 2); };
  Index stride = free ? 1 + gap() : 1;
  Index first = 0;
  for (std::size_t axis : order) {
    const Index extent = std::max<Index>(shape[axis], 1);
    const bool fixed = layout == Layout::dense || (axis + 1 == shape.size() && !free);
    if (!fixed && layout == Layout::read && chance(rng, 0.1)) continue;  // broadcast
    view_.stride[axis] = stride;
    if (!fixed && chance(rng, 0.2)) {
      view_.stride[axis] = -stride;
      first += stride * (extent - 1);
    }
    stride *= extent + gap();
  }
  const std::size_t size = bytes_of(view_);
  const std::size_t ahead = layout == Layout::dense ? kGuard : kGuard + size * (rng() % 8);
  memory_.assign(ahead + static_cast<std::size_t>(stride) * size + kGuard, std::byte{0xFF});
  view_.data = memory_.data() + ahead + static_cast<std::size_t>(first) * size;
  before_ = memory_;
}

void Buffer::poison() {
  std::fill(memory_.begin(), memory_.end(), std::byte{0xA5});
  set_where(view_, [](auto) { return true; }, view_.dtype == DType::uint8 ? 255 : kNan);
  before_ = memory_;
}

bool Buffer::guards_intact() const {
  std::vector<std::byte> expected = before_;
  oracle::for_each_index(shape_of(view_), [&](std::span<const Index> index) {
    const auto* now = static_cast<const std::byte*>(oracle::address(view_, index));
    std::copy_n(now, bytes_of(view_), expected.begin() + (now - memory_.data()));
  });
  return expected == memory_;
}

std::vector<std::uint64_t> bits(const TensorView& view) {
  std::vector<std::uint64_t> all;
  oracle::for_each_index(shape_of(view), [&](std::span<const Index> index) {
    std::uint64_t element = 0;
    std::memcpy(&element, oracle::address(view, index), bytes_of(view));
    all.push_back(element);
  });
  return all;
}

void set_where(const TensorView& view, const std::function<bool(std::span<const Index>)>& where,
               double value) {
  oracle::for_each_index(shape_of(view), [&](std::span<const Index> index) {
    if (where(index)) oracle::encode(view.dtype, oracle::address(view, index), value);
  });
}

void fill_normal(const TensorView& view, Rng& rng, double deviation) {
  std::normal_distribution<double> normal(0.0, deviation);
  oracle::for_each_index(shape_of(view), [&](std::span<const Index> index) {
    oracle::encode(view.dtype, oracle::address(view, index), normal(rng));
  });
}

TensorView Problem::add(DType dtype, const Shape& shape, Layout layout, Rng& rng, LastStride last) {
  inputs_.push_back(std::make_unique<Buffer>(dtype, shape, layout, rng, last));
  fill_normal(inputs_.back()->view(), rng);
  return inputs_.back()->view();
}

TensorView Problem::add_output(DType dtype, const Shape& shape, Layout layout, Rng& rng,
                               LastStride last) {
  const Layout unique = layout == Layout::dense ? layout : Layout::unique;
  outputs_.push_back(std::make_unique<Buffer>(dtype, shape, unique, rng, last));
  return outputs_.back()->view();
}

TensorView Problem::add_integers(const std::vector<std::int32_t>& values, Rng& rng, Layout layout) {
  const Shape shape{static_cast<Index>(values.size())};
  inputs_.push_back(std::make_unique<Buffer>(DType::int32, shape, layout, rng, LastStride::any));
  const TensorView view = inputs_.back()->view();
  for (Index n = 0; n < shape[0]; ++n) {
    oracle::encode(DType::int32, oracle::address(view, std::array{n}),
                   values[static_cast<std::size_t>(n)]);
  }
  return view;
}

DType Problem::statistics() const {
  return attention.q.dtype == DType::float64 ? DType::float64 : DType::float32;
}

void Problem::add_results(bool backward, Layout layout, Rng& rng) {
  onchip::Attention& a = attention;
  Shape out = shape_of(a.q);
  out.back() = a.v.shape[static_cast<std::size_t>(a.v.ndim - 1)];
  const Shape lse = a.q.ndim == 3 ? Shape{out[1], out[0]} : Shape{out[0], out[2], out[1]};
  a.out = add_output(a.q.dtype, out, layout, rng);
  a.lse = add_output(statistics(), lse, layout, rng, LastStride::any);
  if (!backward) return;
  const Layout unique = layout == Layout::dense ? layout : Layout::unique;
  a.dout = add(a.q.dtype, out, unique, rng);
  if (layout != Layout::dense && chance(rng, 0.5)) {
    a.dlse = add(statistics(), lse, unique, rng, LastStride::any);
  }
  a.dq = add_output(a.q.dtype, shape_of(a.q), layout, rng);
  a.dk = add_output(a.q.dtype, shape_of(a.k), layout, rng);
  a.dv = add_output(a.q.dtype, shape_of(a.v), layout, rng);
  if (a.bias.given()) {
    a.dbias = add_output(a.bias.dtype, shape_of(a.bias), layout, rng, LastStride::any);
  }
  if (a.sinks.given()) {
    a.dsinks = add_output(statistics(), shape_of(a.sinks), layout, rng, LastStride::any);
  }
}

Workspace::Workspace(std::size_t bytes)
    : memory_(bytes + 3 * kGuard, std::byte{0xFF}), bytes_(bytes) {
  data_ = memory_.data() + kGuard;
  std::size_t space = bytes + kGuard;
  std::align(kGuard, bytes, data_, space);
}

bool Workspace::guards_intact() const {
  const auto* begin = static_cast<const std::byte*>(data_);
  const auto untouched = [](std::byte x) { return x == std::byte{0xFF}; };
  return std::all_of(memory_.data(), begin, untouched) &&
         std::all_of(begin + bytes_, memory_.data() + memory_.size(), untouched);
}

void call(const onchip::Attention& attention, Pass pass) {
  const onchip::Plan plan = onchip::plan(attention, pass);
  const Workspace workspace(plan.workspace_bytes());
  (pass == Pass::forward ? onchip::forward : onchip::backward)(plan, attention, workspace.data(),
                                                               workspace.size(), {});
  EXPECT_TRUE(workspace.guards_intact()) << "written beside the workspace";
}

void Problem::run_with(const Call& front, Pass pass) {
  for (const auto& output : outputs_) {
    const void* data = output->view().data;
    const bool of_forward = data == attention.out.data || data == attention.lse.data;
    if (of_forward == (pass == Pass::forward)) output->poison();
  }
  front(attention, pass);
}

bool Problem::guards_intact() const {
  const auto intact = [](const auto& buffer) { return buffer->guards_intact(); };
  return std::all_of(inputs_.begin(), inputs_.end(), intact) &&
         std::all_of(outputs_.begin(), outputs_.end(), intact);
}

oracle::Results Problem::results() const {
  const onchip::Attention& a = attention;
  return {.out = oracle::read(a.out),
          .lse = oracle::read(a.lse),
          .dq = oracle::read(a.dq),
          .dk = oracle::read(a.dk),
          .dv = oracle::read(a.dv),
          .dbias = oracle::read(a.dbias),
          .dsinks = oracle::read(a.dsinks)};
}

void Problem::expect_right(bool backward, const std::string& name) const {
  SCOPED_TRACE(name + " " + describe(attention));
  EXPECT_TRUE(guards_intact()) << "written where nothing may be written";
  const DType dtype = attention.q.dtype;
  const Pass pass = backward ? Pass::backward : Pass::forward;
  const oracle::Results exact = oracle::attention(attention, pass);
  const oracle::Results got = results();
  const oracle::Results naive = yardstick(attention, pass, exact, got);
  expect_close("out", dtype, got.out, exact.out, naive.out);
  if (got.lse.given()) expect_close_lse("lse", dtype, got.lse, exact.lse);
  if (!backward) return;
  expect_close("dq", dtype, got.dq, exact.dq, naive.dq);
  expect_close("dk", dtype, got.dk, exact.dk, naive.dk);
  expect_close("dv", dtype, got.dv, exact.dv, naive.dv);
  const double slack = slack_of_sums(dtype, exact);
  if (got.dbias.given()) {
    expect_close("dbias", attention.bias.dtype, got.dbias, exact.dbias, naive.dbias, slack);
  }
  if (got.dsinks.given()) {
    expect_close("dsinks", statistics(), got.dsinks, exact.dsinks, naive.dsinks, slack);
  }
}

namespace {

/// Calls `check(position)` where the reference is finite; elsewhere the two must agree.
template <class Check>
void compare(const std::string& name, const Tensor& got, const Tensor& exact, Check check) {
  ASSERT_EQ(got.shape, exact.shape) << name;
  for (std::size_t at = 0; at < exact.values.size(); ++at) {
    const double want = exact.values[at];
    const double have = got.values[at];
    if (std::isfinite(want) && std::isfinite(have)) {
      ASSERT_TRUE(check(have, want)) << name << "[" << at << "]: " << have << ", expected " << want;
    } else {
      ASSERT_TRUE(have == want || (std::isnan(have) && std::isnan(want)))
          << name << "[" << at << "]: " << have << ", expected " << want;
    }
  }
}

}  // namespace

double slack_of_sums(DType dtype, const oracle::Results& exact) {
  return 1e-5 + 2 * unit_roundoff(dtype) * std::sqrt(exact.spread);
}

oracle::Results yardstick(const onchip::Attention& attention, Pass pass,
                          const oracle::Results& exact, const oracle::Results& got) {
  using oracle::Results;
  constexpr std::array kMembers{&Results::out, &Results::dq,    &Results::dk,
                                &Results::dv,  &Results::dbias, &Results::dsinks};
  const auto error = [&](const Results& results, Tensor Results::* member, std::size_t at) {
    const double x = std::abs((results.*member).values[at] - (exact.*member).values[at]);
    return std::isfinite(x) ? x : 0.0;
  };
  const auto greatest = [&](const Results& results, Tensor Results::* member) {
    double most = 0;
    const std::size_t count =
        std::min((results.*member).values.size(), (exact.*member).values.size());
    for (std::size_t at = 0; at < count; ++at) most = std::max(most, error(results, member, at));
    return most;
  };
  const DType dtype = attention.q.dtype;
  Results naive = oracle::attention(attention, pass, dtype);
  if (onchip::size_of(dtype) != 2) return naive;
  for (const double grid : {1.19, 1.41, 1.68}) {
    const bool enough = std::all_of(kMembers.begin(), kMembers.end(), [&](auto member) {
      return greatest(got, member) <= 2 * greatest(naive, member);
    });
    if (enough) break;
    const Results other = oracle::attention(attention, pass, dtype, grid);
    for (const auto member : kMembers) {
      for (std::size_t at = 0; at < (exact.*member).values.size(); ++at) {
        if (error(other, member, at) <= error(naive, member, at)) continue;
        (naive.*member).values[at] = (other.*member).values[at];
      }
    }
  }
  return naive;
}

void expect_close(const std::string& name, DType dtype, const Tensor& got, const Tensor& exact,
                  const Tensor& naive, double slack) {
  double naive_error = 0;
  double greatest = 1;
  for (std::size_t at = 0; at < exact.values.size(); ++at) {
    const double want = exact.values[at];
    if (!std::isfinite(want)) continue;
    greatest = std::max(greatest, std::abs(want));
    const double best = std::abs(oracle::rounded(dtype, want) - want);
    const double error = std::abs(naive.values[at] - want);
    naive_error = std::max({naive_error, best, std::isfinite(error) ? error : 0.0});
  }
  const double bound = dtype == DType::float64 ? 1e-11 * greatest : 2 * naive_error + slack;
  SCOPED_TRACE("bound " + std::to_string(bound));
  compare(name, got, exact, [bound](double a, double b) { return std::abs(a - b) <= bound; });
}

void expect_close_lse(const std::string& name, DType dtype, const Tensor& got,
                      const Tensor& exact) {
  const double bound = dtype == DType::float64 ? 1e-11 : 1e-4;
  compare(name, got, exact, [bound](double a, double b) {
    return std::abs(a - b) <= bound * std::max(1.0, std::abs(b));
  });
}

std::string describe(const onchip::Attention& a) {
  std::ostringstream text;
  const auto put = [&text](const char* name, const TensorView& view) {
    if (!view.given()) return;
    text << ' ' << name << '(';
    for (Index extent : shape_of(view)) text << extent << ',';
    text << ')';
  };
  text << onchip::name_of(a.q.dtype);
  put("q", a.q);
  put("k", a.k);
  put("v", a.v);
  put("bias", a.bias);
  put("alibi_slopes", a.alibi_slopes);
  put("sinks", a.sinks);
  put("cu_seqlens_q", a.cu_seqlens_q);
  put("seqused_q", a.seqused_q);
  put("seqused_k", a.seqused_k);
  put("block_table", a.block_table);
  put("dlse", a.dlse);
  const onchip::Options& o = a.options;
  text << " causal=" << o.causal << " window=" << o.window_left << ',' << o.window_right
       << " softcap=" << o.softcap << " dropout=" << o.dropout_p << " splits=" << o.num_splits
       << '/' << o.split_size;
  return text.str();
}

}  // namespace fixture
