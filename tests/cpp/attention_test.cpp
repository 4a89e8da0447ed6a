// SPDX-License-Identifier: Apache-2.0
// Random problems against the reference, and what must hold bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>

#include "fixture.hpp"
#include "onchip/threads.hpp"

namespace {

using fixture::bits;
using fixture::Layout;
using fixture::Problem;
using fixture::Rng;
using onchip::DType;
using onchip::TensorView;
using Index = std::int64_t;

constexpr std::array<DType, 4> kTypes{DType::float32, DType::float64, DType::float16,
                                      DType::bfloat16};

/// Restores the default number of threads.
struct Threads {
  explicit Threads(std::int32_t count) { onchip::set_num_threads(count); }
  ~Threads() { onchip::set_num_threads(0); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
};

std::vector<std::vector<std::uint64_t>> all_bits(const onchip::Attention& a, bool backward) {
  std::vector<std::vector<std::uint64_t>> all{bits(a.out), bits(a.lse)};
  if (!backward) return all;
  for (const TensorView& view : {a.dq, a.dk, a.dv, a.dbias, a.dsinks}) {
    all.push_back(view.given() ? bits(view) : std::vector<std::uint64_t>{});
  }
  return all;
}

struct Family {
  const char* name;
  fixture::Spec spec;
};

void PrintTo(const Family& family, std::ostream* os) { *os << family.name; }

class Random : public ::testing::TestWithParam<std::tuple<Family, DType>> {};

/// Forward and backward against the reference, then once more: the same bits.
TEST_P(Random, AgreesWithTheReference) {
  const auto& [family, dtype] = GetParam();
  const int problems = std::max(1, static_cast<int>(15 * fixture::scale()));
  for (int n = 0; n < problems && !HasFailure(); ++n) {
    Rng rng(static_cast<std::uint64_t>(1000 * static_cast<int>(dtype) + n));
    fixture::Spec spec = family.spec;
    spec.dtype = dtype;
    const Threads threads(static_cast<std::int32_t>(fixture::uniform(rng, 1, 5)));
    const auto problem = fixture::random_problem(spec, rng);
    const auto run = [&] {
      problem->forward();
      if (spec.backward) problem->backward();
      return all_bits(problem->attention, spec.backward);
    };
    const auto first = run();
    problem->expect_right(spec.backward, "problem " + std::to_string(n));
    EXPECT_EQ(run(), first) << "not repeatable: problem " << n << ' '
                            << fixture::describe(problem->attention);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Attention, Random,
    ::testing::Combine(
        ::testing::Values(Family{"Dense", {}}, Family{"DenseForward", {.backward = false}},
                          Family{"Packed", {.packed = true}},
                          Family{"PackedForward", {.packed = true, .backward = false}},
                          Family{"Paged", {.paged = true, .backward = false}},
                          Family{"PackedPaged", {.packed = true, .paged = true, .backward = false}},
                          Family{"Small", {.small = true}},
                          Family{"SmallPacked", {.packed = true, .small = true}}),
        ::testing::ValuesIn(kTypes)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" +
             onchip::name_of(std::get<1>(info.param));
    });

// ---------------------------------------------------------------- gradients without the reference

double loss(Problem& problem, const oracle::Tensor& dout, const oracle::Tensor& dlse) {
  problem.forward();
  const oracle::Results r = problem.results();
  double total = 0;
  for (std::size_t n = 0; n < r.out.values.size(); ++n) total += r.out.values[n] * dout.values[n];
  for (std::size_t n = 0; n < dlse.values.size(); ++n) {
    if (std::isfinite(r.lse.values[n])) total += r.lse.values[n] * dlse.values[n];
  }
  return total;
}

/// Slope of the loss along a random direction of one input, both ways.
void expect_slope(const char* name, Problem& problem, const TensorView& input,
                  const oracle::Tensor& gradient, Rng& rng) {
  constexpr double kStep = 1e-5;
  const oracle::Tensor dout = oracle::read(problem.attention.dout);
  const oracle::Tensor dlse = oracle::read(problem.attention.dlse);
  const oracle::Tensor at = oracle::read(input);
  std::normal_distribution<double> normal;
  oracle::Tensor direction = at;
  double slope = 0;
  for (std::size_t n = 0; n < at.values.size(); ++n) {
    direction.values[n] = normal(rng);
    slope += direction.values[n] * gradient.values[n];
  }
  const auto move = [&](double step) {
    oracle::Tensor moved = at;
    for (std::size_t n = 0; n < at.values.size(); ++n) {
      moved.values[n] += step * direction.values[n];
    }
    oracle::write(input, moved);
    return loss(problem, dout, dlse);
  };
  const double difference = (move(kStep) - move(-kStep)) / (2 * kStep);
  oracle::write(input, at);
  EXPECT_GT(std::abs(slope), 1e-4) << name << " says nothing";
  EXPECT_NEAR(slope, difference, 2e-6 * std::max(1.0, std::abs(slope))) << name;
}

TEST(Attention, GradientsAreFiniteDifferences) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Rng rng(seed);
    Problem problem;
    onchip::Attention& a = problem.attention;
    const DType dtype = DType::float64;
    a.q = problem.add(dtype, {2, 21, 4, 9}, Layout::unique, rng);
    a.k = problem.add(dtype, {2, 34, 2, 9}, Layout::unique, rng);
    a.v = problem.add(dtype, {2, 34, 2, 5}, Layout::unique, rng);
    a.bias = problem.add(dtype, {seed % 2 == 0 ? 2 : 1, 4, 21, seed % 3 == 0 ? 34 : 1},
                         Layout::unique, rng);
    a.sinks = problem.add(dtype, {4}, Layout::unique, rng);
    a.alibi_slopes = problem.add(dtype, {2, 4}, Layout::unique, rng);
    a.options.softcap = seed % 2 == 0 ? 1.5 : 0;
    a.options.dropout_p = seed % 3 == 0 ? 0.3 : 0;
    a.options.causal = seed % 3 == 1;
    a.options.window_left = seed % 3 == 2 ? 7 : -1;
    problem.add_results(true, Layout::unique, rng);
    if (!a.dlse.given()) a.dlse = problem.add(dtype, {2, 4, 21}, Layout::unique, rng);
    problem.forward();
    problem.backward();
    const oracle::Results r = problem.results();
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_slope("dq", problem, a.q, r.dq, rng);
    expect_slope("dk", problem, a.k, r.dk, rng);
    expect_slope("dv", problem, a.v, r.dv, rng);
    expect_slope("dbias", problem, a.bias, r.dbias, rng);
    expect_slope("dsinks", problem, a.sinks, r.dsinks, rng);
  }
}

// ---------------------------------------------------------------- batch invariance

/// A dense or packed problem made of given sequences, each with its own seed, lengths as given.
struct Sequences {
  DType dtype;
  bool packed;
  std::vector<std::uint64_t> seeds;
  Index rows, keys;
};

std::unique_ptr<Problem> assemble(const Sequences& x, const onchip::Options& options) {
  Rng rng(99);
  auto problem = std::make_unique<Problem>();
  onchip::Attention& a = problem->attention;
  const auto batch = static_cast<Index>(x.seeds.size());
  const auto shape = [&](Index rows, Index heads, Index dim) {
    return x.packed ? std::vector<Index>{batch * rows, heads, dim}
                    : std::vector<Index>{batch, rows, heads, dim};
  };
  a.options = options;
  a.q = problem->add(x.dtype, shape(x.rows, 4, 40), Layout::dense, rng);
  a.k = problem->add(x.dtype, shape(x.keys, 2, 40), Layout::dense, rng);
  a.v = problem->add(x.dtype, shape(x.keys, 2, 24), Layout::dense, rng);
  problem->add_results(true, Layout::dense, rng);
  if (x.packed) {
    std::vector<std::int32_t> cu_q;
    std::vector<std::int32_t> cu_k;
    for (Index b = 0; b <= batch; ++b) {
      cu_q.push_back(static_cast<std::int32_t>(b * x.rows));
      cu_k.push_back(static_cast<std::int32_t>(b * x.keys));
    }
    a.cu_seqlens_q = problem->add_integers(cu_q, rng);
    a.cu_seqlens_k = problem->add_integers(cu_k, rng);
  }
  // Element n of a tensor lies in sequence n / (elements of a sequence), dense and packed alike.
  for (const TensorView& view : {a.q, a.k, a.v, a.dout}) {
    const Index per_sequence = std::accumulate(view.shape.begin(), view.shape.begin() + view.ndim,
                                               Index{1}, std::multiplies<>()) /
                               batch;
    std::normal_distribution<double> normal;
    for (Index b = 0; b < batch; ++b) {
      Rng own(x.seeds[static_cast<std::size_t>(b)]);
      auto* element = static_cast<char*>(view.data) + b * per_sequence * size_of(view.dtype);
      for (Index n = 0; n < per_sequence; ++n, element += size_of(view.dtype)) {
        oracle::encode(view.dtype, element, normal(own));
      }
    }
  }
  return problem;
}

/// Bits of sequence b of a token tensor.
std::vector<std::uint64_t> sequence_bits(const TensorView& view, Index b, Index batch) {
  const std::vector<std::uint64_t> all = bits(view);
  const auto count = static_cast<Index>(all.size()) / batch;
  return {all.begin() + b * count, all.begin() + (b + 1) * count};
}

/// lse has the heads first in packed form, so that its order differs: (b, h, i) of either.
std::vector<std::uint64_t> lse_bits(const TensorView& lse, Index b, Index batch) {
  if (lse.ndim == 3) return sequence_bits(lse, b, batch);
  const std::vector<std::uint64_t> all = bits(lse);
  const Index rows = lse.shape[1] / batch;
  std::vector<std::uint64_t> own;
  for (Index h = 0; h < lse.shape[0]; ++h) {
    const auto first = all.begin() + h * lse.shape[1] + b * rows;
    own.insert(own.end(), first, first + rows);
  }
  return own;
}

class ByType : public ::testing::TestWithParam<DType> {};

TEST_P(ByType, ForwardBitsDependOnTheSequenceAlone) {
  for (const Index rows : {Index{1}, Index{37}, Index{150}}) {
    for (const bool causal : {false, true}) {
      onchip::Options options;
      options.causal = causal;
      options.split_size = rows == 1 ? 32 : 0;
      const auto alone = assemble({GetParam(), false, {5}, rows, 170}, options);
      {
        const Threads one(1);
        alone->forward();
      }
      const auto out = bits(alone->attention.out);
      const auto lse = bits(alone->attention.lse);
      for (const bool packed : {false, true}) {
        for (const std::int32_t count : {1, 2, 4}) {
          const Threads threads(count);
          const auto crowd = assemble({GetParam(), packed, {1, 2, 5, 3, 5}, rows, 170}, options);
          crowd->forward();
          for (const Index b : {2, 4}) {
            SCOPED_TRACE(fixture::describe(crowd->attention) + " b=" + std::to_string(b) +
                         " threads=" + std::to_string(count));
            EXPECT_EQ(sequence_bits(crowd->attention.out, b, 5), out);
            EXPECT_EQ(lse_bits(crowd->attention.lse, b, 5), lse);
          }
        }
      }
    }
  }
}

TEST_P(ByType, BackwardBitsDoNotDependOnTheBatchPosition) {
  const auto crowd = assemble({GetParam(), false, {1, 5, 2, 5, 5}, 60, 130}, {});
  crowd->forward();
  crowd->backward();
  for (const TensorView& view : {crowd->attention.dq, crowd->attention.dk, crowd->attention.dv}) {
    EXPECT_EQ(sequence_bits(view, 3, 5), sequence_bits(view, 1, 5));
    EXPECT_EQ(sequence_bits(view, 4, 5), sequence_bits(view, 1, 5));
    EXPECT_NE(sequence_bits(view, 0, 5), sequence_bits(view, 1, 5));
  }
}

TEST(Attention, OnePlanServesManyThreads) {
  Rng rng(3);
  std::vector<std::unique_ptr<Problem>> problems;
  onchip::Options options;
  options.causal = true;
  for (std::uint64_t n = 0; n < 6; ++n) {
    problems.push_back(assemble({DType::float32, false, {n, 7}, 50, 90}, options));
  }
  const onchip::Plan plan = onchip::plan(problems[0]->attention, onchip::Pass::forward);
  std::vector<std::thread> threads;
  for (auto& problem : problems) {
    threads.emplace_back([&plan, &problem] {
      const fixture::Workspace workspace(plan.workspace_bytes());
      for (int round = 0; round < 5; ++round) {
        onchip::forward(plan, problem->attention, workspace.data(), workspace.size(), {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& problem : problems) {
    const oracle::Results exact = oracle::attention(problem->attention, onchip::Pass::forward);
    const oracle::Results naive =
        oracle::attention(problem->attention, onchip::Pass::forward, DType::float32);
    fixture::expect_close("out", DType::float32, problem->results().out, exact.out, naive.out);
  }
}

// ---------------------------------------------------------------- merge_states and dropout_mask

/// Parts of the keys, joined, are the whole; one part sees nothing and holds NaN.
TEST_P(ByType, MergedPartsAreTheWhole) {
  Rng rng(11);
  for (const bool packed : {false, true}) {
    Problem whole;
    onchip::Attention& a = whole.attention;
    const Index tokens = 13;
    const auto shape = [&](Index rows, Index heads, Index dim) {
      return packed ? std::vector<Index>{rows, heads, dim}
                    : std::vector<Index>{1, rows, heads, dim};
    };
    a.q = whole.add(GetParam(), shape(tokens, 6, 20), Layout::unique, rng);
    a.k = whole.add(GetParam(), shape(80, 3, 20), Layout::unique, rng);
    a.v = whole.add(GetParam(), shape(80, 3, 33), Layout::unique, rng);
    if (packed) {
      a.cu_seqlens_q = whole.add_integers({0, static_cast<std::int32_t>(tokens)}, rng);
      a.cu_seqlens_k = whole.add_integers({0, 80}, rng);
    }
    whole.add_results(false, Layout::unique, rng);
    std::vector<TensorView> outs;
    std::vector<TensorView> lses;
    for (const auto& [lo, hi] : {std::pair<Index, Index>{0, 30}, {30, 31}, {31, 31}, {31, 80}}) {
      onchip::Attention part = a;
      const std::size_t axis = packed ? 0 : 1;
      for (TensorView* view : {&part.k, &part.v}) {
        std::vector<Index> first(static_cast<std::size_t>(view->ndim), 0);
        first[axis] = lo;
        view->data = oracle::address(*view, first);
        view->shape[axis] = hi - lo;
      }
      if (packed) {
        part.cu_seqlens_k = whole.add_integers({0, static_cast<std::int32_t>(hi - lo)}, rng);
      }
      part.out = whole.add_output(GetParam(), shape(tokens, 6, 33), Layout::unique, rng);
      part.lse = whole.add_output(
          whole.statistics(),
          packed ? std::vector<Index>{6, tokens} : std::vector<Index>{1, 6, tokens}, Layout::unique,
          rng);
      fixture::call(part, onchip::Pass::forward);
      if (lo == hi) fixture::set_where(part.out, [](auto) { return true; }, std::nan(""));
      outs.push_back(part.out);
      lses.push_back(part.lse);
    }
    onchip::merge_states(outs, lses, a.out, a.lse, {});
    whole.expect_right(false, "merged");
    const std::vector<TensorView> nothing{outs[2], outs[2]};
    const std::vector<TensorView> no_lse{lses[2], lses[2]};
    onchip::merge_states(nothing, no_lse, a.out, a.lse, {});
    for (double value : whole.results().out.values) ASSERT_EQ(value, 0.0);
    for (double value : whole.results().lse.values) ASSERT_EQ(value, -INFINITY);
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, ByType, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return onchip::name_of(info.param); });

TEST(Attention, DropoutMaskFollowsItsCoordinates) {
  Rng rng(17);
  for (int n = 0; n < 12; ++n) {
    onchip::Options options;
    options.dropout_p = static_cast<double>(rng() % 1000) / 1000;
    options.seed = rng();
    options.offset = rng() >> (8 * (n % 8));
    const std::vector<Index> shape{fixture::uniform(rng, 0, 3), fixture::uniform(rng, 1, 3),
                                   fixture::uniform(rng, 0, 20), fixture::uniform(rng, 0, 40)};
    fixture::Buffer mask(DType::uint8, shape, Layout::unique, rng);
    mask.poison();
    onchip::dropout_mask(mask.view(), options.dropout_p, options.seed, options.offset, {});
    EXPECT_TRUE(mask.guards_intact());
    oracle::for_each_index(shape, [&](std::span<const Index> at) {
      const bool kept = oracle::kept(options, at[0] * shape[1] + at[1], at[2], at[3]);
      ASSERT_EQ(oracle::decode(DType::uint8, oracle::address(mask.view(), at)), kept ? 1 : 0);
    });
  }
}

}  // namespace
