// SPDX-License-Identifier: Apache-2.0
// The Hopper forward kernels: every instance, and which tiles they compute again: those that have
// the bits of softmax="safe".
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "common/kernel.hpp"
#include "device.hpp"

namespace {

using fixture::Layout;
using fixture::Problem;
using fixture::Rng;
using onchip::DType;
using onchip::Pass;
using onchip::Softmax;
using Index = std::int64_t;

constexpr std::array kTypes{DType::bfloat16, DType::float16};

struct Width {
  Index dim, dim_v;
  Index keys = 277;  // of `small`
};
constexpr std::array kWidths{Width{64, 64},   Width{96, 96},   Width{128, 128},
                             Width{192, 128}, Width{192, 192}, Width{256, 256}};
// And those for long sequences without a mask.
constexpr std::array kInstances{kWidths[0], kWidths[1], kWidths[2],         kWidths[3],
                                kWidths[4], kWidths[5], Width{64, 64, 8205}};

std::string name_of(DType dtype, const Width& width) {
  return std::string(onchip::name_of(dtype)) + "_d" + std::to_string(width.dim) + "_" +
         std::to_string(width.dim_v) + (width.keys > 277 ? "_long" : "");
}

struct Shape {
  Index batch, rows, keys, heads, heads_kv;
};

std::unique_ptr<Problem> dense(DType dtype, const Width& width, const Shape& s) {
  Rng rng(7);
  auto problem = std::make_unique<Problem>();
  onchip::Attention& a = problem->attention;
  a.q = problem->add(dtype, {s.batch, s.rows, s.heads, width.dim}, Layout::dense, rng);
  a.k = problem->add(dtype, {s.batch, s.keys, s.heads_kv, width.dim}, Layout::dense, rng);
  a.v = problem->add(dtype, {s.batch, s.keys, s.heads_kv, width.dim_v}, Layout::dense, rng);
  return problem;
}

/// Several tiles, the last ones cut short; a full instance has options.
std::unique_ptr<Problem> small(DType dtype, const Width& width, bool full, Softmax softmax) {
  Rng rng(8);
  const bool masked = width.keys == 277;
  const Index heads = masked ? 2 : 1;
  auto problem = dense(dtype, width, {1, 201, width.keys, heads, 1});
  onchip::Attention& a = problem->attention;
  a.options.causal = masked && !full;
  a.options.softmax = softmax;
  if (full) {
    a.options.softcap = 5;
    if (masked) a.options.window_left = 90;
    a.options.dropout_p = 0.25;
    a.options.seed = 5;
    a.bias = problem->add(dtype, {1, 1, 201, width.keys}, Layout::dense, rng);
    a.alibi_slopes = problem->add(DType::float32, {heads}, Layout::dense, rng);
    fixture::fill_normal(a.alibi_slopes, rng, 0.1);
    a.sinks = problem->add(DType::float32, {heads}, Layout::dense, rng);
  }
  problem->add_results(false, Layout::dense, rng);
  return problem;
}

void move_to_device(onchip::Attention& a) {
  for (const auto member :
       {&onchip::Attention::q, &onchip::Attention::k, &onchip::Attention::v,
        &onchip::Attention::bias, &onchip::Attention::alibi_slopes, &onchip::Attention::sinks,
        &onchip::Attention::out, &onchip::Attention::lse}) {
    (a.*member).device = {onchip::DeviceType::cuda, 0};
  }
}

/// Where a plan says that this build has the kernel. Needs no device.
TEST(HopperInstances, AreAllTested) {
  std::set<std::string> tested;
  for (const DType dtype : kTypes) {
    for (const Width& width : kInstances) {
      for (const bool full : {false, true}) {
        onchip::Attention a = small(dtype, width, full, Softmax::automatic)->attention;
        move_to_device(a);
        tested.insert(onchip::plan(a, Pass::forward, onchip::device_info("H200")).info().kernel);
      }
    }
  }
  for (const onchip::cuda::Kernel& kernel : onchip::cuda::kernels()) {
    const std::string name = kernel.name;
    if (name.starts_with("sm90")) {
      EXPECT_TRUE(tested.contains(name)) << name;
    }
  }
}

template <class Base>
class NeedsHopper : public device::Needs<Base> {
 protected:
  void SetUp() override {
    device::Needs<Base>::SetUp();
    if (this->IsSkipped()) return;
    const onchip::DeviceInfo info = onchip::device_info("cuda:0");
    if (info.family < 90) GTEST_SKIP() << info.name << " does not run these kernels";
  }
};

using Param = std::tuple<DType, Width>;
class GpuHopperInstances : public NeedsHopper<::testing::TestWithParam<Param>> {};

/// Small enough for the sanitizers, which run these.
TEST_P(GpuHopperInstances, AreRight) {
  const auto& [dtype, width] = GetParam();
  for (const bool full : {false, true}) {
    for (const Softmax softmax : {Softmax::automatic, Softmax::safe}) {
      const auto problem = small(dtype, width, full, softmax);
      problem->run_with(device::call, Pass::forward);
      problem->expect_right(false, full ? "full" : "lean");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuHopperInstances,
                         ::testing::Combine(::testing::ValuesIn(kTypes),
                                            ::testing::ValuesIn(kInstances)),
                         [](const auto& info) {
                           return name_of(std::get<DType>(info.param), std::get<Width>(info.param));
                         });

/// A tile of rows: sequence, head and place among its tiles.
using Tile = std::array<Index, 3>;

Index tile_q(const Problem& problem) {
  onchip::Attention a = problem.attention;
  move_to_device(a);
  return onchip::plan(a, Pass::forward).info().tile_q;
}

/// Tiles of which every row is, to the bit, that of the safe softmax.
std::set<Tile> safe_tiles(Problem& problem) {
  const auto launch = [&](Softmax softmax) {
    problem.attention.options.softmax = softmax;
    problem.run_with(device::call, Pass::forward);
    return std::array{fixture::bits(problem.attention.out), fixture::bits(problem.attention.lse)};
  };
  const auto safe = launch(Softmax::safe);
  const auto usual = launch(Softmax::automatic);
  const auto& shape = problem.attention.out.shape;
  const Index rows = shape[1], heads = shape[2], dim = shape[3];
  const Index tile = tile_q(problem);
  std::set<Tile> same, different;
  const auto compare = [&](std::size_t result, Index element, const Tile& at) {
    const auto n = static_cast<std::size_t>(element);
    (safe[result][n] == usual[result][n] ? same : different).insert(at);
  };
  for (Index b = 0; b < shape[0]; ++b) {
    for (Index row = 0; row < rows; ++row) {
      for (Index head = 0; head < heads; ++head) {
        const Tile at{b, head, row / tile};
        for (Index d = 0; d < dim; ++d) compare(0, ((b * rows + row) * heads + head) * dim + d, at);
        compare(1, (b * heads + head) * rows + row, at);
      }
    }
  }
  for (const Tile& tile : different) same.erase(tile);
  return same;
}

class GpuHopperSoftmax : public NeedsHopper<::testing::TestWithParam<Param>> {};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuHopperSoftmax,
                         ::testing::Combine(::testing::ValuesIn(kTypes),
                                            ::testing::ValuesIn(kWidths)),
                         [](const auto& info) {
                           return name_of(std::get<DType>(info.param), std::get<Width>(info.param));
                         });

constexpr Shape kShape{.batch = 2, .rows = 400, .keys = 450, .heads = 2, .heads_kv = 1};

/// Of the first key, in these rows of head 1 of sequence 0, or in all.
std::unique_ptr<Problem> with_lead(const Param& param, double nats, const std::set<Index>& rows,
                                   bool all = false) {
  constexpr double kQuery = 16;
  constexpr double kScale = 0.125;
  const auto& [dtype, width] = param;
  Rng rng(9);
  auto problem = dense(dtype, width, kShape);
  onchip::Attention& a = problem->attention;
  a.options.scale = kScale;
  // Scores with a deviation of about 1.
  fixture::fill_normal(a.q, rng, 8 / std::sqrt(static_cast<double>(width.dim)));
  fixture::set_where(a.q, [](auto at) { return at[3] == 0; }, 0);
  fixture::set_where(a.k, [](auto at) { return at[3] == 0; }, 0);
  fixture::set_where(
      a.q,
      [&](auto at) {
        return at[3] == 0 && (all || (at[0] == 0 && at[2] == 1 && rows.contains(at[1])));
      },
      kQuery);
  fixture::set_where(
      a.k, [](auto at) { return at[3] == 0 && at[1] == 0; }, nats / (kQuery * kScale));
  problem->add_results(false, Layout::dense, rng);
  return problem;
}

std::set<Tile> tiles_of(const std::set<Index>& rows, Index tile_q) {
  std::set<Tile> tiles;
  for (const Index row : rows) tiles.insert({0, 1, row / tile_q});
  return tiles;
}

TEST_P(GpuHopperSoftmax, OnlyTilesThatLostTheirRangeAreComputedAgain) {
  EXPECT_EQ(safe_tiles(*with_lead(GetParam(), 0, {})), std::set<Tile>{});
  for (const std::set<Index>& rows :
       {std::set<Index>{3}, {399}, {3, 5, 77}, {63, 64, 65, 300}, {3, 250, 390}}) {
    const auto problem = with_lead(GetParam(), 200, rows);
    EXPECT_EQ(safe_tiles(*problem), tiles_of(rows, tile_q(*problem)));
    problem->expect_right(false);
  }
}

TEST_P(GpuHopperSoftmax, EveryTileIsComputedAgain) {
  const auto problem = with_lead(GetParam(), 200, {}, true);
  const Index tiles = (kShape.rows + tile_q(*problem) - 1) / tile_q(*problem);
  EXPECT_EQ(safe_tiles(*problem).size(),
            static_cast<std::size_t>(kShape.batch * kShape.heads * tiles));
  problem->expect_right(false);
}

/// Bases move, of which the tile's other rows tell nothing.
TEST_P(GpuHopperSoftmax, ALeadThatFloat32HoldsLosesNothing) {
  for (const double nats : {5.0, 20.0, 60.0, 70.0}) {
    const auto problem = with_lead(GetParam(), nats, {3, 5, 77, 250, 390});
    EXPECT_EQ(safe_tiles(*problem), std::set<Tile>{}) << nats;
    problem->expect_right(false);
  }
}

TEST_P(GpuHopperSoftmax, NanLosesItsTileAndEnds) {
  const auto problem = with_lead(GetParam(), 0, {});
  fixture::set_where(
      problem->attention.q,
      [](auto at) { return at[0] == 1 && at[1] == 300 && at[2] == 1 && at[3] == 5; },
      std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(safe_tiles(*problem), (std::set<Tile>{{1, 1, 300 / tile_q(*problem)}}));
  problem->expect_right(false);
}

/// The online softmax compares bits of scores where a row's maximum is above zero, scores
/// elsewhere.
TEST_P(GpuHopperSoftmax, MaximaMayLieBelowZeroAndCrossIt) {
  struct Levels {
    const char* name;
    double first, last;  // of the first and of the last key, in nats
  };
  for (const Levels& levels : {Levels{"below zero", -300, -300}, Levels{"rising", 30, -90},
                               Levels{"falling", -90, 30}, Levels{"about zero", -3, 3}}) {
    const auto problem = with_lead(GetParam(), 0, {}, true);
    onchip::Attention& a = problem->attention;
    for (Index key = 0; key < kShape.keys; ++key) {
      const double part = static_cast<double>(key) / static_cast<double>(kShape.keys - 1);
      fixture::set_where(
          a.k, [&](auto at) { return at[3] == 0 && at[1] == key; },
          ((1 - part) * levels.first + part * levels.last) / 2);
    }
    for (const Softmax softmax : {Softmax::automatic, Softmax::safe}) {
      a.options.softmax = softmax;
      problem->run_with(device::call, Pass::forward);
      problem->expect_right(false, levels.name);
    }
  }
}

}  // namespace
