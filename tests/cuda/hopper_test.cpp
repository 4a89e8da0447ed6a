// SPDX-License-Identifier: Apache-2.0
// The Hopper forward kernels: every instance, and how many tiles their optimistic softmax loses.
// Its list of lost tiles lies in the workspace, where these tests read it.
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "common/kernel.hpp"
#include "device.hpp"
#include "host/gpu_plan.hpp"
#include "host/hopper_plan.hpp"
#include "host/plan_impl.hpp"
#include "sm90/fwd_params.hpp"

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
};
constexpr std::array kWidths{Width{64, 64},   Width{96, 96},   Width{128, 128},
                             Width{192, 128}, Width{192, 192}, Width{256, 256}};

std::string name_of(DType dtype, const Width& width) {
  return std::string(onchip::name_of(dtype)) + "_d" + std::to_string(width.dim) + "_" +
         std::to_string(width.dim_v);
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
  auto problem = dense(dtype, width, {1, 201, 277, 2, 1});
  onchip::Attention& a = problem->attention;
  a.options.causal = !full;
  a.options.softmax = softmax;
  if (full) {
    a.options.softcap = 5;
    a.options.window_left = 90;
    a.alibi_slopes = problem->add(DType::float32, {2}, Layout::dense, rng);
    fixture::fill_normal(a.alibi_slopes, rng, 0.1);
    a.sinks = problem->add(DType::float32, {2}, Layout::dense, rng);
  }
  problem->add_results(false, Layout::dense, rng);
  return problem;
}

void move_to_device(onchip::Attention& a) {
  for (const auto member : {&onchip::Attention::q, &onchip::Attention::k, &onchip::Attention::v,
                            &onchip::Attention::alibi_slopes, &onchip::Attention::sinks,
                            &onchip::Attention::out, &onchip::Attention::lse}) {
    (a.*member).device = {onchip::DeviceType::cuda, 0};
  }
}

/// Where a plan says that this build has the kernel. Needs no device.
TEST(HopperInstances, AreAllTested) {
  std::set<std::string> tested;
  for (const DType dtype : kTypes) {
    for (const Width& width : kWidths) {
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
                                            ::testing::ValuesIn(kWidths)),
                         [](const auto& info) {
                           return name_of(std::get<DType>(info.param), std::get<Width>(info.param));
                         });

/// One launch: its plan, and what the ledger says after it.
struct Launched {
  onchip::PlanInfo info;
  Index tiles = 0;
  onchip::cuda::sm90::Ledger ledger{};
  std::vector<std::vector<std::uint64_t>> bits;
};

Launched launch(Problem& problem) {
  Launched done;
  problem.run_with(
      [&](const onchip::Attention& attention, Pass pass) {
        const device::Mirror mirror(attention);
        mirror.upload();
        const onchip::Plan plan = onchip::plan(mirror.attention, pass);
        done.info = plan.info();
        const device::Memory workspace(plan.workspace_bytes());
        device::check(cudaMemset(workspace.data(), 0xFF, plan.workspace_bytes()), "poison");
        device::check(cudaDeviceSynchronize(), "poison");
        const device::Stream stream;
        onchip::forward(plan, mirror.attention, workspace.data(), plan.workspace_bytes(),
                        stream.view());
        stream.synchronize();
        mirror.download();
        const onchip::host::Problem& p = plan.impl().problem;
        done.tiles = onchip::host::hopper_blocks(p, done.info.tile_q);
        const std::byte* ledger =
            workspace.data() + onchip::host::gpu_workspace(p, 1, done.tiles).ledger;
        device::check(cudaMemcpy(&done.ledger, ledger, sizeof(done.ledger), cudaMemcpyDeviceToHost),
                      "ledger");
      },
      Pass::forward);
  done.bits = device::bits(problem.attention);
  return done;
}

class GpuHopperLedger : public NeedsHopper<::testing::TestWithParam<Param>> {};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuHopperLedger,
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

std::set<Index> tiles_of(const std::set<Index>& rows, Index tile_q) {
  std::set<Index> tiles;
  for (const Index row : rows) tiles.insert(row / tile_q);
  return tiles;
}

TEST_P(GpuHopperLedger, CountsTheTilesThatLostTheirRange) {
  const Launched calm = launch(*with_lead(GetParam(), 0, {}));
  EXPECT_EQ(calm.ledger.lost, 0U);
  for (const std::set<Index>& rows :
       {std::set<Index>{3}, {399}, {3, 5, 77}, {63, 64, 65, 300}, {3, 250, 390}}) {
    const auto problem = with_lead(GetParam(), 200, rows);
    const Launched some = launch(*problem);
    EXPECT_EQ(some.ledger.lost, tiles_of(rows, some.info.tile_q).size());
    if (rows.size() == 3) problem->expect_right(false);
  }
  const Launched all = launch(*with_lead(GetParam(), 200, {}, true));
  EXPECT_EQ(all.ledger.lost, all.tiles);
}

/// bfloat16's weights have float32's range; float16's end at 65504.
TEST_P(GpuHopperLedger, ALeadThatTheTypeHoldsLosesNothing) {
  const bool wide = std::get<DType>(GetParam()) == DType::bfloat16;
  const Launched held = launch(*with_lead(GetParam(), wide ? 60 : 5, {}, true));
  EXPECT_EQ(held.ledger.lost, 0U);
  const Launched beyond = launch(*with_lead(GetParam(), wide ? 90 : 20, {}, true));
  EXPECT_EQ(beyond.ledger.lost, beyond.tiles);
}

TEST_P(GpuHopperLedger, LostTilesHaveTheBitsOfTheSafeKernel) {
  const auto problem = with_lead(GetParam(), 200, {}, true);
  const Launched twice = launch(*problem);
  ASSERT_EQ(twice.ledger.lost, twice.tiles);
  problem->attention.options.softmax = Softmax::safe;
  const Launched safe = launch(*problem);
  EXPECT_NE(safe.info.kernel, twice.info.kernel);
  EXPECT_EQ(safe.ledger.lost, 0U);
  EXPECT_EQ(safe.bits, twice.bits);
}

TEST_P(GpuHopperLedger, NanLosesATileOnce) {
  const auto problem = with_lead(GetParam(), 0, {});
  fixture::set_where(
      problem->attention.q,
      [](auto at) { return at[0] == 1 && at[1] == 300 && at[2] == 1 && at[3] == 5; },
      std::numeric_limits<double>::quiet_NaN());
  const Launched once = launch(*problem);
  EXPECT_EQ(once.ledger.lost, 1U);
  problem->expect_right(false);
}

}  // namespace
