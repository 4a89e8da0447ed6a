// SPDX-License-Identifier: Apache-2.0
// Every row of the contract's table of degenerate cases, forward and backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "fixture.hpp"

namespace {

using fixture::bits;
using fixture::Layout;
using fixture::Problem;
using fixture::Rng;
using onchip::DType;
using onchip::Pass;
using onchip::TensorView;
using oracle::Tensor;
using Index = std::int64_t;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array<DType, 4> kTypes{DType::float32, DType::float64, DType::float16,
                                      DType::bfloat16};

struct Shape {
  Index batch = 1, rows = 1, keys = 1, heads = 1, heads_kv = 1, dim = 8, dim_v = 8;
};

/// Normal inputs; `add_results` is left to the caller, who may add bias and sinks first.
std::unique_ptr<Problem> dense(DType dtype, const Shape& s, Rng& rng) {
  auto problem = std::make_unique<Problem>();
  onchip::Attention& a = problem->attention;
  a.q = problem->add(dtype, {s.batch, s.rows, s.heads, s.dim}, Layout::dense, rng);
  a.k = problem->add(dtype, {s.batch, s.keys, s.heads_kv, s.dim}, Layout::dense, rng);
  a.v = problem->add(dtype, {s.batch, s.keys, s.heads_kv, s.dim_v}, Layout::dense, rng);
  return problem;
}

void run(Problem& problem) {
  problem.forward();
  problem.backward();
}

void expect_all(const char* name, const Tensor& tensor, double value) {
  for (double x : tensor.values) ASSERT_EQ(x, value) << name;
}

class Degenerate : public ::testing::TestWithParam<DType> {};

// ---------------------------------------------------------------- nothing to see

/// Rows and keys that meet nobody hold NaN everywhere, dout and dlse too, and still give zeros.
TEST_P(Degenerate, RowsWithoutKeysAreZeroWhateverTheyHold) {
  Rng rng(1);
  for (const bool with_sinks : {false, true}) {
    const Shape shape{.batch = 2, .rows = 75, .keys = 20, .heads = 4, .heads_kv = 2};
    const auto problem = dense(GetParam(), shape, rng);
    onchip::Attention& a = problem->attention;
    a.options.causal = true;  // rows 0 to 54 lie before the first key
    if (with_sinks) a.sinks = problem->add(problem->statistics(), {4}, Layout::dense, rng);
    problem->add_results(true, Layout::dense, rng);
    a.dlse = problem->add(problem->statistics(), {2, 4, 75}, Layout::dense, rng);
    fixture::set_where(a.q, [](auto at) { return at[1] < 55; }, kNan);
    fixture::set_where(a.dout, [](auto at) { return at[1] < 55; }, kInfinity);
    fixture::set_where(a.dlse, [](auto at) { return at[2] < 55; }, kNan);
    run(*problem);
    problem->expect_right(true);
    oracle::Results r = problem->results();
    for (Index i = 0; i < 55; ++i) {
      ASSERT_EQ(r.lse({1, 3, i}), -kInfinity);
      for (Index d = 0; d < 8; ++d) {
        ASSERT_EQ(r.out({1, i, 3, d}), 0.0);
        ASSERT_EQ(r.dq({1, i, 3, d}), 0.0);
      }
    }
  }
}

TEST_P(Degenerate, KeysThatNoRowSeesAreZeroWhateverTheyHold) {
  Rng rng(2);
  const Shape shape{.batch = 2, .rows = 9, .keys = 130, .heads = 2, .heads_kv = 1};
  const auto problem = dense(GetParam(), shape, rng);
  onchip::Attention& a = problem->attention;
  a.options.window_left = 3;
  a.options.window_right = 2;  // keys 118 to 129 are seen
  problem->add_results(true, Layout::dense, rng);
  for (const TensorView& view : {a.k, a.v}) {
    fixture::set_where(view, [](auto at) { return at[1] < 118; }, kNan);
  }
  run(*problem);
  problem->expect_right(true);
  oracle::Results r = problem->results();
  EXPECT_EQ(r.dk({1, 117, 0, 0}), 0.0);
  EXPECT_NE(r.dk({1, 118, 0, 0}), 0.0);
}

TEST_P(Degenerate, EmptyExtentsGiveZeros) {
  Rng rng(3);
  for (const Shape& shape :
       {Shape{.batch = 0, .rows = 5, .keys = 6}, Shape{.batch = 2, .rows = 0, .keys = 6},
        Shape{.batch = 2, .rows = 5, .keys = 0}, Shape{.batch = 0, .rows = 0, .keys = 0}}) {
    const auto problem = dense(GetParam(), shape, rng);
    onchip::Attention& a = problem->attention;
    a.sinks = problem->add(problem->statistics(), {1}, Layout::dense, rng);
    a.bias = problem->add(GetParam(), {1, 1, 1, 1}, Layout::dense, rng);
    problem->add_results(true, Layout::dense, rng);
    SCOPED_TRACE(fixture::describe(a));
    run(*problem);
    EXPECT_TRUE(problem->guards_intact());
    const oracle::Results r = problem->results();
    expect_all("out", r.out, 0);
    expect_all("lse", r.lse, -kInfinity);
    expect_all("dq", r.dq, 0);
    expect_all("dk", r.dk, 0);
    expect_all("dv", r.dv, 0);
    expect_all("dbias", r.dbias, 0);
    expect_all("dsinks", r.dsinks, 0);
  }
}

TEST_P(Degenerate, EmptySequencesAmongOthers) {
  Rng rng(4);
  Problem problem;
  onchip::Attention& a = problem.attention;
  a.q = problem.add(GetParam(), {11, 2, 8}, Layout::dense, rng);
  a.k = problem.add(GetParam(), {12, 1, 8}, Layout::dense, rng);
  a.v = problem.add(GetParam(), {12, 1, 8}, Layout::dense, rng);
  a.cu_seqlens_q = problem.add_integers({0, 0, 4, 4, 9, 9}, rng);
  a.cu_seqlens_k = problem.add_integers({0, 3, 3, 3, 10, 10}, rng);
  problem.add_results(true, Layout::dense, rng);
  run(problem);
  problem.expect_right(true);
}

// ---------------------------------------------------------------- what may not be read

/// The same problem with other rubbish where nothing may be read: the same bits.
TEST_P(Degenerate, RubbishNeverReachesAResult) {
  struct Family {
    bool packed, paged;
  };
  for (const Family& family : {Family{false, false}, {true, false}, {false, true}, {true, true}}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      std::vector<std::vector<std::uint64_t>> first;
      for (const double rubbish : {0.0, kNan, kInfinity, -kInfinity}) {
        Rng rng(seed);
        const auto problem = fixture::random_problem({.dtype = GetParam(),
                                                      .packed = family.packed,
                                                      .paged = family.paged,
                                                      .backward = !family.paged,
                                                      .small = seed % 2 == 0,
                                                      .poison = rubbish},
                                                     rng);
        const onchip::Attention& a = problem->attention;
        problem->forward();
        if (!family.paged) problem->backward();
        std::vector<std::vector<std::uint64_t>> all;
        for (const TensorView& view : {a.out, a.lse, a.dq, a.dk, a.dv, a.dbias, a.dsinks}) {
          all.push_back(view.given() ? bits(view) : std::vector<std::uint64_t>{});
        }
        if (first.empty()) first = all;
        ASSERT_EQ(all, first) << fixture::describe(a) << " rubbish " << rubbish;
      }
    }
  }
}

// ---------------------------------------------------------------- NaN and Inf that are seen

/// Where the reference has a number there is that number; where it has none there is none.
void expect_same_spread(const char* name, DType dtype, Tensor got, Tensor exact, Tensor naive,
                        double slack) {
  ASSERT_EQ(got.shape, exact.shape) << name;
  for (std::size_t at = 0; at < exact.values.size(); ++at) {
    ASSERT_EQ(std::isfinite(got.values[at]), std::isfinite(exact.values[at]))
        << name << '[' << at << "] is " << got.values[at] << ", expected " << exact.values[at];
    if (std::isfinite(exact.values[at])) continue;
    got.values[at] = exact.values[at] = naive.values[at] = 0;
  }
  fixture::expect_close(name, dtype, got, exact, naive, slack);
}

/// -inf in lse is a number here: a row without keys.
void make_finite(Tensor& lse) {
  for (double& x : lse.values) x = x == -kInfinity ? -1e30 : x;
}

void expect_same_spread(const Problem& problem) {
  const onchip::Attention& a = problem.attention;
  const DType dtype = a.q.dtype;
  SCOPED_TRACE(fixture::describe(a));
  oracle::Results got = problem.results();
  oracle::Results exact = oracle::attention(a, Pass::backward);
  oracle::Results naive = oracle::attention(a, Pass::backward, dtype);
  for (oracle::Results* r : {&got, &exact, &naive}) make_finite(r->lse);
  // The naive computation overflows where a gradient is huge, and rounds bias and sinks.
  const double slack = 1e-5;
  expect_same_spread("out", dtype, got.out, exact.out, naive.out, slack);
  expect_same_spread("lse", problem.statistics(), got.lse, exact.lse, exact.lse, 1e-4);
  expect_same_spread("dq", dtype, got.dq, exact.dq, naive.dq, slack);
  expect_same_spread("dk", dtype, got.dk, exact.dk, naive.dk, slack);
  expect_same_spread("dv", dtype, got.dv, exact.dv, naive.dv, slack);
  if (got.dbias.given()) {
    expect_same_spread("dbias", dtype, got.dbias, exact.dbias, naive.dbias, slack);
  }
  if (got.dsinks.given()) {
    expect_same_spread("dsinks", dtype, got.dsinks, exact.dsinks, naive.dsinks, 0.1);
  }
}

std::unique_ptr<Problem> masked_problem(DType dtype, std::uint64_t seed, Rng& rng) {
  const Shape shape{
      .batch = 2, .rows = 70, .keys = 213, .heads = 4, .heads_kv = 2, .dim = 24, .dim_v = 17};
  auto problem = dense(dtype, shape, rng);
  onchip::Attention& a = problem->attention;
  a.options.causal = seed % 2 == 0;
  a.options.window_left = seed % 3 == 0 ? 40 : -1;
  a.options.softcap = seed % 4 == 3 ? 4 : 0;
  if (seed % 3 != 2) a.bias = problem->add(dtype, {1, 4, 70, 213}, Layout::dense, rng);
  if (seed % 4 == 1) a.sinks = problem->add(problem->statistics(), {4}, Layout::dense, rng);
  problem->add_results(true, Layout::dense, rng);
  return problem;
}

class Propagation : public ::testing::TestWithParam<std::tuple<DType, const char*, double>> {};

TEST_P(Propagation, ReachesTheRowsThatSeeItAndNoOther) {
  const auto& [dtype, name, value] = GetParam();
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Rng rng(seed + 100);
    const auto problem = masked_problem(dtype, seed, rng);
    onchip::Attention& a = problem->attention;
    const std::string which = name;
    const TensorView view = which == "q"      ? a.q
                            : which == "k"    ? a.k
                            : which == "v"    ? a.v
                            : which == "bias" ? a.bias
                                              : a.dout;
    if (!view.given()) continue;
    std::array<Index, 4> index{};
    for (std::size_t axis = 0; axis < 4; ++axis) {
      index[axis] = fixture::uniform(rng, 0, view.shape[axis] - 1);
    }
    oracle::encode(view.dtype, oracle::address(view, index), value);
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(*problem);
    expect_same_spread(*problem);
  }
}

std::string name_of_propagation(const ::testing::TestParamInfo<Propagation::ParamType>& info) {
  const double value = std::get<2>(info.param);
  return std::string(onchip::name_of(std::get<0>(info.param))) + "_" + std::get<1>(info.param) +
         (std::isnan(value) ? "_nan"
          : value > 0       ? "_inf"
                            : "_minus_inf");
}

INSTANTIATE_TEST_SUITE_P(Degenerate, Propagation,
                         ::testing::Combine(::testing::ValuesIn(kTypes),
                                            ::testing::Values("q", "k", "v", "bias", "dout"),
                                            ::testing::Values(kNan, kInfinity, -kInfinity)),
                         name_of_propagation);

// ---------------------------------------------------------------- extreme scores

/// A score of 1e4 in float32 has a last place of 1e-3, and so much is a weight uncertain.
TEST_P(Degenerate, ScoresOfTenThousandAreRight) {
  Rng rng(5);
  for (const double size : {1e4, -1e4}) {
    const auto problem = dense(GetParam(), {.rows = 40, .keys = 150, .dim = 4}, rng);
    onchip::Attention& a = problem->attention;
    fixture::set_where(a.q, [](auto at) { return at[3] == 0; }, 4);
    fixture::set_where(a.k, [](auto at) { return at[3] == 0; }, size < 0 ? -4 : 4);
    a.options.scale = std::abs(size) / 16;
    problem->add_results(true, Layout::dense, rng);
    run(*problem);
    const oracle::Results exact = oracle::attention(a, Pass::backward);
    const oracle::Results naive = oracle::attention(a, Pass::backward, GetParam());
    const oracle::Results got = problem->results();
    fixture::expect_close_lse("lse", GetParam(), got.lse, exact.lse);
    EXPECT_GT(std::abs(got.lse.values[0]), 1e3);
    for (const auto member : {&oracle::Results::out, &oracle::Results::dq, &oracle::Results::dk,
                              &oracle::Results::dv}) {
      double greatest = 1;
      for (double x : (exact.*member).values) greatest = std::max(greatest, std::abs(x));
      const double slack = greatest * std::abs(size) * 0x1p-22;
      fixture::expect_close("result", GetParam(), got.*member, exact.*member, naive.*member, slack);
    }
  }
}

TEST_P(Degenerate, EqualScoresGiveTheMean) {
  Rng rng(6);
  const auto problem = dense(GetParam(), {.rows = 33, .keys = 128, .dim = 16}, rng);
  onchip::Attention& a = problem->attention;
  fixture::set_where(a.q, [](auto) { return true; }, 0);
  fixture::set_where(a.v, [](auto) { return true; }, 0.75);
  problem->add_results(true, Layout::dense, rng);
  run(*problem);
  problem->expect_right(true);
  for (double x : problem->results().out.values) ASSERT_NEAR(x, 0.75, 1e-6);
  for (double x : problem->results().lse.values) ASSERT_NEAR(x, std::log(128.0), 1e-6);
}

/// Columns, rows and single entries of -inf; a whole row of it sees no key.
TEST_P(Degenerate, BiasOfMinusInfinityHidesKeys) {
  Rng rng(7);
  for (const bool causal : {false, true}) {
    const auto problem = dense(GetParam(), {.batch = 2, .rows = 50, .keys = 140, .heads = 2}, rng);
    onchip::Attention& a = problem->attention;
    a.options.causal = causal;
    a.bias = problem->add(GetParam(), {2, 1, 50, 140}, Layout::dense, rng);
    fixture::set_where(
        a.bias,
        [&](auto at) {
          return at[3] % 7 == 0 || at[2] == 13 || at[3] < 100 || fixture::chance(rng, 0.2);
        },
        -kInfinity);
    problem->add_results(true, Layout::dense, rng);
    run(*problem);
    problem->expect_right(true);
    oracle::Results r = problem->results();
    EXPECT_EQ(r.lse({1, 0, 13}), -kInfinity);
    EXPECT_EQ(r.out({1, 13, 0, 0}), 0.0);
    EXPECT_EQ(r.dq({1, 13, 0, 0}), 0.0);
    EXPECT_TRUE(std::isfinite(r.lse({1, 0, 49})));
  }
}

// ---------------------------------------------------------------- windows and lengths

TEST_P(Degenerate, WindowsOfAnyWidthOnAnyLengths) {
  constexpr Index kHuge = Index{1} << 62;
  const std::array<std::pair<Index, Index>, 9> windows{{{0, 0},
                                                        {5, -1},
                                                        {-1, 3},
                                                        {300, 300},
                                                        {kHuge, kHuge},
                                                        {kHuge, 0},
                                                        {0, kHuge},
                                                        {2, 1},
                                                        {-1, 0}}};
  Rng rng(8);
  for (const auto& [rows, keys] :
       {std::pair<Index, Index>{1, 1}, {1, 120}, {120, 1}, {33, 90}, {90, 33}, {64, 64}}) {
    for (const auto& [left, right] : windows) {
      const auto problem =
          dense(GetParam(), {.rows = rows, .keys = keys, .heads = 2, .dim = 5, .dim_v = 3}, rng);
      problem->attention.options.window_left = left;
      problem->attention.options.window_right = right;
      problem->add_results(true, Layout::dense, rng);
      run(*problem);
      problem->expect_right(true);
    }
  }
}

// ---------------------------------------------------------------- many of something

TEST_P(Degenerate, ThousandHeads) {
  Rng rng(9);
  const Shape shape{.rows = 3, .keys = 5, .heads = 1000, .heads_kv = 500, .dim = 4, .dim_v = 4};
  const auto problem = dense(GetParam(), shape, rng);
  problem->attention.options.causal = true;
  problem->add_results(true, Layout::dense, rng);
  run(*problem);
  problem->expect_right(true);
}

TEST(Many, BatchOfHundredThousand) {
  Rng rng(10);
  const auto problem =
      dense(DType::float32, {.batch = 100000, .rows = 1, .keys = 3, .dim = 2, .dim_v = 2}, rng);
  problem->add_results(true, Layout::dense, rng);
  run(*problem);
  problem->expect_right(true);
}

TEST(Many, PackedBatchOfHundredThousand) {
  Rng rng(11);
  Problem problem;
  onchip::Attention& a = problem.attention;
  a.q = problem.add(DType::float32, {100000, 1, 2}, Layout::dense, rng);
  a.k = problem.add(DType::float32, {200000, 1, 2}, Layout::dense, rng);
  a.v = problem.add(DType::float32, {200000, 1, 2}, Layout::dense, rng);
  std::vector<std::int32_t> cu_q;
  std::vector<std::int32_t> cu_k;
  for (std::int32_t b = 0; b <= 100000; ++b) {
    cu_q.push_back(b);
    cu_k.push_back(2 * b);
  }
  a.cu_seqlens_q = problem.add_integers(cu_q, rng);
  a.cu_seqlens_k = problem.add_integers(cu_k, rng);
  problem.add_results(true, Layout::dense, rng);
  run(problem);
  problem.expect_right(true);
}

INSTANTIATE_TEST_SUITE_P(Degenerate, Degenerate, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return onchip::name_of(info.param); });

}  // namespace
