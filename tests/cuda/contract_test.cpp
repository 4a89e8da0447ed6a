// SPDX-License-Identifier: Apache-2.0
// Random problems and degenerate ones on a GPU, forward and backward, against the reference.
#include <array>
#include <limits>
#include <string>
#include <tuple>

#include "device.hpp"

namespace {

using fixture::Layout;
using fixture::Problem;
using fixture::Rng;
using onchip::DType;
using onchip::Pass;
using Index = std::int64_t;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array kTypes{DType::float32, DType::float16, DType::bfloat16};

struct Family {
  const char* name;
  bool packed, paged;
};

constexpr std::array<Family, 4> kFamilies{{{"dense", false, false},
                                           {"packed", true, false},
                                           {"paged", false, true},
                                           {"both", true, true}}};

using Param = std::tuple<DType, Family>;
class GpuRandom : public device::Needs<::testing::TestWithParam<Param>> {};

std::unique_ptr<Problem> random_problem(const Param& param, std::uint64_t seed, bool small,
                                        double poison = kNan) {
  const auto& [dtype, family] = param;
  Rng rng(seed);
  return fixture::random_problem({.dtype = dtype,
                                  .packed = family.packed,
                                  .paged = family.paged,
                                  .backward = !family.paged,
                                  .small = small,
                                  .poison = poison,
                                  .gpu = true},
                                 rng);
}

void run(Problem& problem, bool backward) {
  problem.run_with(device::call, Pass::forward);
  if (backward) problem.run_with(device::call, Pass::backward);
}

TEST_P(GpuRandom, AreRight) {
  const bool backward = !std::get<Family>(GetParam()).paged;
  const auto count = static_cast<std::uint64_t>(25 * fixture::scale());
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const auto problem = random_problem(GetParam(), seed, seed % 3 == 0);
    run(*problem, backward);
    problem->expect_right(backward, "seed " + std::to_string(seed));
  }
}

/// The same problem with other rubbish where nothing may be read: the same bits.
TEST_P(GpuRandom, RubbishNeverReachesAResult) {
  const bool backward = !std::get<Family>(GetParam()).paged;
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    std::vector<std::vector<std::uint64_t>> first;
    for (const double rubbish : {0.0, kNan, kInfinity, -kInfinity}) {
      const auto problem = random_problem(GetParam(), seed, seed % 2 == 0, rubbish);
      problem->attention.options.deterministic = true;
      run(*problem, backward);
      const auto all = device::bits(problem->attention);
      if (first.empty()) first = all;
      ASSERT_EQ(all, first) << fixture::describe(problem->attention) << " rubbish " << rubbish;
    }
  }
}

/// Small enough for the sanitizers, which run these.
TEST_P(GpuRandom, SmallOnesAreRight) {
  const bool backward = !std::get<Family>(GetParam()).paged;
  for (std::uint64_t seed = 200; seed < 206; ++seed) {
    const auto problem = random_problem(GetParam(), seed, true);
    run(*problem, backward);
    problem->expect_right(backward, "seed " + std::to_string(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuRandom,
                         ::testing::Combine(::testing::ValuesIn(kTypes),
                                            ::testing::ValuesIn(kFamilies)),
                         [](const auto& info) {
                           return std::string(onchip::name_of(std::get<DType>(info.param))) + "_" +
                                  std::get<Family>(info.param).name;
                         });

struct Shape {
  Index batch = 1, rows = 1, keys = 1, heads = 1, heads_kv = 1, dim = 8;
};

std::unique_ptr<Problem> dense(DType dtype, const Shape& s, Rng& rng) {
  auto problem = std::make_unique<Problem>();
  onchip::Attention& a = problem->attention;
  a.q = problem->add(dtype, {s.batch, s.rows, s.heads, s.dim}, Layout::dense, rng);
  a.k = problem->add(dtype, {s.batch, s.keys, s.heads_kv, s.dim}, Layout::dense, rng);
  a.v = problem->add(dtype, {s.batch, s.keys, s.heads_kv, s.dim}, Layout::dense, rng);
  return problem;
}

class GpuDegenerate : public device::Needs<::testing::TestWithParam<DType>> {};

/// Rows before the first key hold NaN everywhere, dout and dlse too, and still give zeros. Rows 128
/// to 154 share a tile with rows that see keys: only of dlse may NaN stand there, since products
/// are of whole tiles.
TEST_P(GpuDegenerate, RowsWithoutKeysAreZeroWhateverTheyHold) {
  Rng rng(1);
  const Shape shape{.batch = 2, .rows = 175, .keys = 20, .heads = 4, .heads_kv = 2, .dim = 64};
  const auto problem = dense(GetParam(), shape, rng);
  onchip::Attention& a = problem->attention;
  a.options.causal = true;
  a.sinks = problem->add(DType::float32, {4}, Layout::dense, rng);
  problem->add_results(true, Layout::dense, rng);
  a.dlse = problem->add(DType::float32, {2, 4, 175}, Layout::dense, rng);
  fixture::set_where(a.q, [](auto at) { return at[1] < 128; }, kNan);
  fixture::set_where(a.dout, [](auto at) { return at[1] < 128; }, kInfinity);
  fixture::set_where(a.dlse, [](auto at) { return at[2] < 155; }, kNan);
  device::run(*problem);
  problem->expect_right(true);
  oracle::Results r = problem->results();
  for (Index i = 0; i < 155; ++i) {
    ASSERT_EQ(r.lse({1, 3, i}), -kInfinity);
    for (Index d = 0; d < 64; ++d) {
      ASSERT_EQ(r.out({1, i, 3, d}), 0.0);
      ASSERT_EQ(r.dq({1, i, 3, d}), 0.0);
    }
  }
}

/// Whole tiles of keys that no row sees, NaN in them: zeros for every dk and dv. The sanitizers run
/// this too: nothing waits for such a tile but its end.
TEST_P(GpuDegenerate, KeysThatNoRowSeesAreZeroWhateverTheyHold) {
  Rng rng(2);
  for (const Index dim : {64, 128, 256}) {
    const Shape shape{.batch = 2, .rows = 9, .keys = 300, .heads = 2, .heads_kv = 1, .dim = dim};
    const auto problem = dense(GetParam(), shape, rng);
    onchip::Attention& a = problem->attention;
    a.options.window_left = 3;
    a.options.window_right = 2;  // keys 288 to 299 are seen
    problem->add_results(true, Layout::dense, rng);
    for (const onchip::TensorView& view : {a.k, a.v}) {
      fixture::set_where(view, [](auto at) { return at[1] < 256; }, kNan);
    }
    device::run(*problem);
    problem->expect_right(true);
    EXPECT_EQ(problem->results().dk({1, 255, 0, 0}), 0.0);
  }
}

TEST_P(GpuDegenerate, EmptyExtentsGiveZeros) {
  Rng rng(3);
  for (const Shape& shape :
       {Shape{.batch = 0, .rows = 5, .keys = 6}, Shape{.batch = 2, .rows = 0, .keys = 6},
        Shape{.batch = 2, .rows = 5, .keys = 0}, Shape{.batch = 0, .rows = 0, .keys = 0}}) {
    const auto problem = dense(GetParam(), shape, rng);
    onchip::Attention& a = problem->attention;
    a.sinks = problem->add(DType::float32, {1}, Layout::dense, rng);
    a.bias = problem->add(GetParam(), {1, 1, 1, 1}, Layout::dense, rng);
    problem->add_results(true, Layout::dense, rng);
    SCOPED_TRACE(fixture::describe(a));
    device::run(*problem);
    problem->expect_right(true);
    for (const double x : problem->results().dsinks.values) EXPECT_EQ(x, 0.0);
    for (const double x : problem->results().dbias.values) EXPECT_EQ(x, 0.0);
  }
}

TEST_P(GpuDegenerate, BatchOfHundredThousand) {
  Rng rng(10);
  const auto problem = dense(GetParam(), {.batch = 100000, .rows = 1, .keys = 3}, rng);
  problem->add_results(true, Layout::dense, rng);
  device::run(*problem);
  problem->expect_right(true);
}

TEST_P(GpuDegenerate, PackedBatchOfHundredThousand) {
  Rng rng(11);
  Problem problem;
  onchip::Attention& a = problem.attention;
  a.q = problem.add(GetParam(), {100000, 1, 8}, Layout::dense, rng);
  a.k = problem.add(GetParam(), {200000, 1, 8}, Layout::dense, rng);
  a.v = problem.add(GetParam(), {200000, 1, 8}, Layout::dense, rng);
  std::vector<std::int32_t> cu_q;
  std::vector<std::int32_t> cu_k;
  for (std::int32_t b = 0; b <= 100000; ++b) {
    cu_q.push_back(b);
    cu_k.push_back(2 * b);
  }
  a.cu_seqlens_q = problem.add_integers(cu_q, rng);
  a.cu_seqlens_k = problem.add_integers(cu_k, rng);
  problem.add_results(true, Layout::dense, rng);
  device::run(problem);
  problem.expect_right(true);
}

TEST_P(GpuDegenerate, ThousandHeads) {
  Rng rng(9);
  const Shape shape{.rows = 3, .keys = 5, .heads = 1000, .heads_kv = 500};
  const auto problem = dense(GetParam(), shape, rng);
  problem->attention.options.causal = true;
  problem->add_results(true, Layout::dense, rng);
  device::run(*problem);
  problem->expect_right(true);
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuDegenerate, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return onchip::name_of(info.param); });

}  // namespace
