// SPDX-License-Identifier: Apache-2.0
// Every instance of the sm80 family at work on a problem of a few tiles, on newer devices too. The
// sanitizers run these.
#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "common/kernel.hpp"
#include "device.hpp"
#include "onchip/plan.hpp"

namespace {

using fixture::Layout;
using fixture::Problem;
using fixture::Rng;
using onchip::DType;
using onchip::Pass;
using Index = std::int64_t;

/// Instances for less shared memory are chosen on devices that have less.
struct Room {
  const char* name;
  std::int64_t bytes;  // of a block; 0: what the device has
};
constexpr std::array kRooms{Room{"", 0}, Room{"_163KiB", 163 << 10}, Room{"_99KiB", 99 << 10}};

/// What chooses an instance.
struct Choice {
  DType dtype = DType::float32;
  Index dim = 64;
  bool full = false;
  Room room = kRooms[0];

  [[nodiscard]] std::string name() const {
    return std::string(onchip::name_of(dtype)) + "_d" + std::to_string(dim) +
           (full ? "_full" : "_lean") + room.name;
  }
};

std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
    for (const Index dim : {64, 128, 256}) {
      for (const bool full : {false, true}) {
        for (const Room& room : kRooms) {
          if (room.bytes == 0 || (dtype != DType::float32 && dim > 64)) {
            all.push_back({dtype, dim, full, room});
          }
        }
      }
    }
  }
  return all;
}

/// Two tiles of rows and two of keys, the last ones cut short; every option where `full`.
std::unique_ptr<Problem> problem_of(const Choice& x, bool deterministic) {
  Rng rng(7);
  auto problem = std::make_unique<Problem>();
  onchip::Attention& a = problem->attention;
  const Index rows = 137;
  const Index keys = 149;
  a.q = problem->add(x.dtype, {1, rows, 2, x.dim}, Layout::dense, rng);
  a.k = problem->add(x.dtype, {1, keys, 1, x.dim}, Layout::dense, rng);
  a.v = problem->add(x.dtype, {1, keys, 1, x.dim - 8}, Layout::dense, rng);
  a.options.causal = !x.full;
  a.options.deterministic = deterministic;
  if (x.full) {
    a.options.softcap = 5;
    a.options.dropout_p = 0.25;
    a.options.seed = 3;
    a.options.window_left = 90;
    a.bias = problem->add(x.dtype, {1, 2, rows, keys}, Layout::dense, rng);
    a.alibi_slopes = problem->add(DType::float32, {2}, Layout::dense, rng);
    fixture::fill_normal(a.alibi_slopes, rng, 0.1);
    a.sinks = problem->add(DType::float32, {2}, Layout::dense, rng);
  }
  problem->add_results(true, Layout::dense, rng);
  a.dlse = problem->add(DType::float32, {1, 2, rows}, Layout::dense, rng);
  return problem;
}

onchip::DeviceInfo with_room(onchip::DeviceInfo device, const Room& room) {
  device.family = 80;
  if (room.bytes > 0) device.on_chip_bytes = room.bytes;
  return device;
}

class GpuInstances : public device::Needs<::testing::TestWithParam<Choice>> {};

TEST_P(GpuInstances, AreRight) {
  const Choice& choice = GetParam();
  for (const bool deterministic : {false, true}) {
    const auto problem = problem_of(choice, deterministic);
    const onchip::DeviceInfo info = with_room(onchip::device_info("cuda:0"), choice.room);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      problem->run_with([&](const onchip::Attention& a, Pass p) { device::call_for(a, p, info); },
                        pass);
    }
    problem->expect_right(true, choice.name());
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuInstances, ::testing::ValuesIn(choices()),
                         [](const auto& info) { return info.param.name(); });

/// The tests above leave out no instance. Needs no device.
TEST(Instances, AreAllTested) {
  std::set<std::string> tested;
  for (const Choice& choice : choices()) {
    const onchip::DeviceInfo info = with_room(onchip::device_info("H200"), choice.room);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      onchip::Attention a = problem_of(choice, false)->attention;
      for (const auto member :
           {&onchip::Attention::q, &onchip::Attention::k, &onchip::Attention::v,
            &onchip::Attention::bias, &onchip::Attention::alibi_slopes, &onchip::Attention::sinks,
            &onchip::Attention::out, &onchip::Attention::lse, &onchip::Attention::dout,
            &onchip::Attention::dlse, &onchip::Attention::dq, &onchip::Attention::dk,
            &onchip::Attention::dv, &onchip::Attention::dbias, &onchip::Attention::dsinks}) {
        (a.*member).device = {onchip::DeviceType::cuda, 0};
      }
      tested.insert(onchip::plan(a, pass, info).info().kernel);
    }
  }
  for (const onchip::cuda::Kernel& kernel : onchip::cuda::kernels()) {
    const std::string name = kernel.name;
    if (name.starts_with("sm80_fwd_") || name.starts_with("sm80_bwd_")) {
      EXPECT_TRUE(tested.contains(name)) << name;
    }
  }
}

class GpuHelpers : public device::Needs<::testing::TestWithParam<DType>> {};

/// Parts of keys, some of them empty, and their combination; also page by page.
TEST_P(GpuHelpers, Splits) {
  Rng rng(5);
  Problem problem;
  onchip::Attention& a = problem.attention;
  a.q = problem.add(GetParam(), {2, 3, 4, 64}, Layout::dense, rng);
  a.k = problem.add(GetParam(), {14, 16, 2, 64}, Layout::dense, rng);
  a.v = problem.add(GetParam(), {14, 16, 2, 64}, Layout::dense, rng);
  a.seqused_k = problem.add_integers({97, 20}, rng);
  a.block_table = problem.add(DType::int32, {2, 7}, Layout::dense, rng);
  fixture::set_where(a.block_table, [](auto) { return true; }, -1);
  for (std::int32_t n = 0; n < 9; ++n) {
    const std::array<Index, 2> at{n / 7, n % 7};
    oracle::encode(DType::int32, oracle::address(a.block_table, at), 13 - n);
  }
  a.sinks = problem.add(DType::float32, {4}, Layout::dense, rng);
  problem.add_results(false, Layout::dense, rng);
  for (const Index split_size : {Index{13}, Index{64}}) {
    a.options.split_size = split_size;
    problem.run_with(device::call, Pass::forward);
    problem.expect_right(false, "split_size " + std::to_string(split_size));
  }
}

TEST_P(GpuHelpers, MergedPartsAreTheWhole) {
  Rng rng(6);
  Problem whole;
  onchip::Attention& a = whole.attention;
  a.q = whole.add(GetParam(), {1, 5, 2, 64}, Layout::dense, rng);
  a.k = whole.add(GetParam(), {1, 40, 2, 64}, Layout::dense, rng);
  a.v = whole.add(GetParam(), {1, 40, 2, 64}, Layout::dense, rng);
  whole.add_results(false, Layout::dense, rng);
  Problem parts[2];
  std::vector<onchip::TensorView> outs;
  std::vector<onchip::TensorView> lses;
  std::vector<device::Mirror> mirrors;
  mirrors.reserve(3);
  for (std::size_t n = 0; n < 2; ++n) {
    onchip::Attention& part = parts[n].attention;
    part = a;
    for (onchip::TensorView* view : {&part.k, &part.v}) {
      view->shape[1] = 20;
      view->data = static_cast<std::byte*>(view->data) +
                   static_cast<Index>(n) * 20 * view->stride[1] * onchip::size_of(view->dtype);
    }
    parts[n].add_results(false, Layout::dense, rng);
    parts[n].run_with(device::call, Pass::forward);
    mirrors.emplace_back(part);
    mirrors.back().upload();
    outs.push_back(mirrors.back().attention.out);
    lses.push_back(mirrors.back().attention.lse);
  }
  mirrors.emplace_back(a);
  mirrors.back().upload();
  const device::Stream stream;
  onchip::merge_states(outs, lses, mirrors[2].attention.out, mirrors[2].attention.lse,
                       stream.view());
  stream.synchronize();
  mirrors[2].download();
  whole.expect_right(false, "merged");
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuHelpers,
                         ::testing::Values(DType::bfloat16, DType::float16, DType::float32),
                         [](const auto& info) { return onchip::name_of(info.param); });

}  // namespace
