// SPDX-License-Identifier: Apache-2.0
// A launch against its plan: what may differ and what may not, workspace, merge_states and
// dropout_mask, and that a launch allocates nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "onchip/threads.hpp"
#include "scene.hpp"

namespace {

using onchip::Attention;
using onchip::DType;
using onchip::ErrorCode;
using onchip::Pass;
using onchip::TensorView;
using scene::Kind;
using scene::Scene;

constexpr Pass kForward = Pass::forward;
constexpr Pass kBackward = Pass::backward;

void expect_invalid(const std::function<void()>& call, const std::string& argument,
                    const std::string& says) {
  scene::expect_error(call, ErrorCode::invalid_argument, argument, says);
}

// ---------------------------------------------------------------- a launch unlike its plan

struct Changed {
  Kind kind;
  Pass pass;
  const char* argument;
  const char* says;
  void (*change)(Attention&);
};

/// Each is a good problem of its own, but not the one planned.
const std::vector<Changed>& changes() {
  static const std::vector<Changed> table = {
      {Kind::dense, kForward, "q", "batch is 1, but 2 was planned",
       [](Attention& a) {
         for (TensorView* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.bias}) t->shape[0] = 1;
       }},
      {Kind::dense, kForward, "q", "total_q is 8, but 10 was planned",
       [](Attention& a) { a.q.shape[1] = a.out.shape[1] = a.lse.shape[2] = a.bias.shape[2] = 4; }},
      {Kind::dense, kForward, "k", "total_k is 12, but 14",
       [](Attention& a) { a.k.shape[1] = a.v.shape[1] = a.bias.shape[3] = 6; }},
      {Kind::dense, kForward, "k", "heads_kv is 1, but 2 was planned",
       [](Attention& a) { a.k.shape[2] = a.v.shape[2] = 1; }},
      {Kind::dense, kForward, "q", "heads_q is 2, but 4 was planned",
       [](Attention& a) {
         a.q.shape[2] = a.out.shape[2] = a.lse.shape[1] = a.bias.shape[1] = 2;
         a.alibi_slopes.shape[0] = a.sinks.shape[0] = 2;
       }},
      {Kind::dense, kForward, "q", "D is 7", [](Attention& a) { a.q.shape[3] = a.k.shape[3] = 7; }},
      {Kind::dense, kForward, "v", "Dv is 5",
       [](Attention& a) { a.v.shape[3] = a.out.shape[3] = 5; }},
      {Kind::dense, kForward, "q", "strides", [](Attention& a) { a.q.stride[0] = 32; }},
      {Kind::dense, kForward, "v", "strides", [](Attention& a) { a.v.stride[1] = 0; }},
      {Kind::dense, kForward, "out", "strides", [](Attention& a) { a.out.stride[0] += 24; }},
      {Kind::dense, kForward, "lse", "strides", [](Attention& a) { a.lse.stride[0] += 1; }},
      {Kind::dense, kForward, "bias", "strides", [](Attention& a) { a.bias.stride[3] = 0; }},
      {Kind::dense, kForward, "bias", "its shape", [](Attention& a) { a.bias.shape[0] = 1; }},
      {Kind::dense, kForward, "sinks", "strides", [](Attention& a) { a.sinks.stride[0] = 0; }},
      {Kind::dense, kForward, "alibi_slopes", "strides",
       [](Attention& a) { a.alibi_slopes.stride[0] = 0; }},
      {Kind::dense, kForward, "lse", "not given, but", [](Attention& a) { a.lse = {}; }},
      {Kind::dense, kForward, "bias", "not given, but", [](Attention& a) { a.bias = {}; }},
      {Kind::dense, kForward, "sinks", "not given, but", [](Attention& a) { a.sinks = {}; }},
      {Kind::dense, kForward, "alibi_slopes", "not given, but",
       [](Attention& a) { a.alibi_slopes = {}; }},
      {Kind::dense, kForward, "seqused_k", "given, but the plan was made without it",
       [](Attention& a) {
         static std::int32_t used[2] = {1, 2};
         a.seqused_k = onchip::make_tensor(used, DType::int32, {2});
       }},
      {Kind::dense, kForward, "scale", "is 0.5", [](Attention& a) { a.options.scale = 0.5; }},
      {Kind::dense, kForward, "softcap", "is 2", [](Attention& a) { a.options.softcap = 2; }},
      {Kind::dense, kForward, "dropout_p", "is 0.25",
       [](Attention& a) { a.options.dropout_p = 0.25; }},
      {Kind::dense, kForward, "window_left", "is 3",
       [](Attention& a) { a.options.window_left = 3; }},
      {Kind::dense, kForward, "window_right", "is 0, but -1",
       [](Attention& a) { a.options.causal = true; }},
      {Kind::dense, kForward, "num_splits", "is 2", [](Attention& a) { a.options.num_splits = 2; }},
      {Kind::dense, kForward, "split_size", "is 3", [](Attention& a) { a.options.split_size = 3; }},
      {Kind::dense, kForward, "softmax", "is 1, but 0",
       [](Attention& a) { a.options.softmax = onchip::Softmax::safe; }},
      {Kind::dense, kBackward, "deterministic", "is 1, but 0",
       [](Attention& a) { a.options.deterministic = true; }},
      {Kind::dense, kBackward, "dlse", "not given, but", [](Attention& a) { a.dlse = {}; }},
      {Kind::dense, kBackward, "dbias", "not given, but", [](Attention& a) { a.dbias = {}; }},
      {Kind::dense, kBackward, "dsinks", "not given, but", [](Attention& a) { a.dsinks = {}; }},
      {Kind::dense, kBackward, "dout", "strides", [](Attention& a) { a.dout.stride[0] = 0; }},
      {Kind::dense, kBackward, "dq", "strides", [](Attention& a) { a.dq.stride[0] += 32; }},
      {Kind::dense, kBackward, "dk", "strides", [](Attention& a) { a.dk.stride[0] += 16; }},
      {Kind::dense, kBackward, "dv", "strides", [](Attention& a) { a.dv.stride[0] += 12; }},
      {Kind::dense, kBackward, "dlse", "strides", [](Attention& a) { a.dlse.stride[0] = 0; }},
      {Kind::dense, kBackward, "dbias", "strides", [](Attention& a) { a.dbias.stride[0] += 140; }},
      {Kind::dense, kBackward, "dsinks", "strides", [](Attention& a) { a.dsinks.stride[0] = 2; }},
      {Kind::packed, kForward, "q", "batch is 1",
       [](Attention& a) {
         a.cu_seqlens_q.shape[0] = a.cu_seqlens_k.shape[0] = 2;
         a.seqused_q.shape[0] = a.seqused_k.shape[0] = a.bias.shape[0] = 1;
       }},
      {Kind::packed, kForward, "seqused_q", "not given, but",
       [](Attention& a) { a.seqused_q = {}; }},
      {Kind::packed, kForward, "q", "max_seqlen_q is 5, but 9",
       [](Attention& a) { a.options.max_seqlen_q = 5; }},
      {Kind::packed, kForward, "k", "max_seqlen_k is 7, but 10",
       [](Attention& a) { a.options.max_seqlen_k = 7; }},
      {Kind::packed, kForward, "cu_seqlens_q", "strides",
       [](Attention& a) { a.cu_seqlens_q.stride[0] = 0; }},
      {Kind::packed, kForward, "cu_seqlens_k", "strides",
       [](Attention& a) { a.cu_seqlens_k.stride[0] = 0; }},
      {Kind::packed, kForward, "seqused_q", "strides",
       [](Attention& a) { a.seqused_q.stride[0] = 0; }},
      {Kind::packed, kForward, "seqused_k", "strides",
       [](Attention& a) { a.seqused_k.stride[0] = 0; }},
      {Kind::paged, kForward, "k", "the number of pages is 4",
       [](Attention& a) { a.k.shape[0] = a.v.shape[0] = 4; }},
      {Kind::paged, kForward, "k", "page_size is 3",
       [](Attention& a) { a.k.shape[1] = a.v.shape[1] = 3, a.bias.shape[3] = 6; }},
      {Kind::paged, kForward, "block_table", "max_pages is 1",
       [](Attention& a) { a.block_table.shape[1] = 1, a.bias.shape[3] = 4; }},
      {Kind::paged, kForward, "block_table", "strides",
       [](Attention& a) { a.block_table.stride[0] = 0; }},
      {Kind::paged, kForward, "block_table", "not given, but",
       [](Attention& a) {
         a.block_table = {};
         a.k.shape[0] = a.v.shape[0] = 2;
         a.bias = {};
       }},
  };
  return table;
}

class ChangedLaunch : public ::testing::TestWithParam<Changed> {};

TEST_P(ChangedLaunch, NamesWhatChanged) {
  const Changed& row = GetParam();
  Scene scene(row.kind, row.pass);
  const onchip::Plan plan = onchip::plan(scene.attention, row.pass);
  row.change(scene.attention);
  EXPECT_NO_THROW((void)onchip::plan(scene.attention, row.pass));
  expect_invalid([&] { scene.launch(plan, row.pass); }, row.argument, row.says);
  EXPECT_TRUE(scene.untouched());
}

INSTANTIATE_TEST_SUITE_P(Table, ChangedLaunch, ::testing::ValuesIn(changes()),
                         [](const auto& info) {
                           return std::to_string(info.index) + "_" + info.param.argument;
                         });

TEST(Launch, RefusesThePlanOfTheOtherPass) {
  Scene scene(Kind::dense, kBackward);
  const onchip::Plan forward = onchip::plan(scene.attention, kForward);
  const onchip::Plan backward = onchip::plan(scene.attention, kBackward);
  expect_invalid([&] { scene.launch(forward, kBackward); }, "plan", "made for forward");
  expect_invalid([&] { scene.launch(backward, kForward); }, "plan", "made for backward");
  EXPECT_TRUE(scene.untouched());
}

TEST(Launch, RefusesThePlanOfANamedDevice) {
  Scene scene(Kind::dense, kForward);
  scene.attention.v = scene.attention.k;
  scene.attention.out = scene::view_of_shape({2, 5, 4, 8});
  const onchip::Plan plan = onchip::plan(scene.attention, kForward, onchip::device_info("H200"));
  expect_invalid([&] { scene.launch(plan, kForward); }, "plan", "was made for H200");
  EXPECT_TRUE(scene.untouched());
}

TEST(Launch, TakesOtherPointersSeedAndOffset) {
  Scene planned(Kind::dense, kForward), other(Kind::dense, kForward);
  planned.attention.options.dropout_p = other.attention.options.dropout_p = 0.5;
  const onchip::Plan plan = onchip::plan(planned.attention, kForward);
  other.attention.options.seed = 5;
  other.attention.options.offset = 9;
  EXPECT_NO_THROW(other.launch(plan, kForward));
  EXPECT_FALSE(other.untouched());
}

/// Strides of axes with one element or of tensors with none mean nothing; libraries fill them
/// with anything.
TEST(Launch, IgnoresStridesThatDoNotCount) {
  Scene scene(Kind::dense, kForward);
  Attention& a = scene.attention;
  for (TensorView* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.bias}) t->shape[0] = 1;
  const onchip::Plan one = onchip::plan(a, kForward);
  for (TensorView* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.bias}) t->stride[0] = -77;
  EXPECT_NO_THROW(scene.launch(one, kForward));

  for (TensorView* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.bias}) t->shape[0] = 0;
  const onchip::Plan none = onchip::plan(a, kForward);
  for (TensorView* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.bias}) {
    t->stride = {0, -3, 0, 1 << 30, 0};
    t->data = nullptr;
  }
  EXPECT_NO_THROW(scene.launch(none, kForward));
}

TEST(Launch, IgnoresAllOfATensorThatIsNotGiven) {
  Scene scene(Kind::dense, kForward);
  Attention& a = scene.attention;
  a.bias.ndim = a.sinks.ndim = a.lse.ndim = 0;
  a.bias.data = a.sinks.data = a.lse.data = reinterpret_cast<void*>(1);
  EXPECT_NO_THROW(scene.launch(onchip::plan(a, kForward), kForward));
}

TEST(Launch, TakesAnyHintOfTheLengths) {
  Scene scene(Kind::packed, kForward);
  scene.attention.options.max_seqlen_q = std::numeric_limits<std::int64_t>::max();
  scene.attention.options.max_seqlen_k = std::numeric_limits<std::int64_t>::max();
  scene.attention.options.window_left = std::numeric_limits<std::int64_t>::max();
  scene.attention.options.window_right = std::numeric_limits<std::int64_t>::max();
  scene.attention.options.num_splits = std::numeric_limits<std::int32_t>::max();
  EXPECT_NO_THROW(scene.launch(onchip::plan(scene.attention, kForward), kForward));
}

/// The gradients of one projection: slices of a (B, S, 3, H, D) array lie between each other.
TEST(Launch, TakesOutputsBetweenEachOther) {
  Scene scene(Kind::dense, kBackward);
  Attention& a = scene.attention;
  std::vector<float> fused(2 * 5 * (4 + 2 + 2) * 8);
  for (TensorView* t : {&a.k, &a.v, &a.dk, &a.dv}) t->shape[1] = 5;
  a.v.shape[3] = a.dv.shape[3] = a.dout.shape[3] = a.out.shape[3] = 6;
  a.bias = a.dbias = {};
  std::int64_t column = 0;
  for (TensorView* t : {&a.dq, &a.dk, &a.dv}) {
    t->data = fused.data() + column;
    t->stride = {5 * 64, 64, 8, 1};
    column += t->shape[2] * 8;
  }
  EXPECT_NO_THROW(scene.launch(onchip::plan(a, kBackward), kBackward));
}

// ---------------------------------------------------------------- workspace

TEST(Workspace, MustHaveThePlannedSizeAndAlignment) {
  Scene scene(Kind::dense, kForward);
  const Attention& a = scene.attention;
  const onchip::Plan plan = onchip::plan(a, kForward);
  const std::size_t bytes = plan.workspace_bytes();
  ASSERT_GT(bytes, 0U);
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  std::vector<Line> memory(bytes / 256 + 2);
  auto* first = reinterpret_cast<std::byte*>(memory.data());
  const auto run = [&](void* workspace, std::size_t size) {
    return [&a, &plan, workspace, size] { onchip::forward(plan, a, workspace, size, {}); };
  };
  expect_invalid(run(nullptr, bytes), "workspace",
                 "has 0 bytes, expected " + std::to_string(bytes));
  expect_invalid(run(first, bytes - 1), "workspace", "has " + std::to_string(bytes - 1));
  expect_invalid(run(first + 64, bytes), "workspace", "not aligned to 256");
  EXPECT_TRUE(scene.untouched());
  EXPECT_NO_THROW(run(first, bytes)());
}

// ---------------------------------------------------------------- merge_states

struct Merge {
  std::array<float, 480> memory{};
  std::vector<TensorView> outs, lses;
  TensorView out, lse;

  Merge() {
    const auto state = [this](std::size_t at) {
      return onchip::make_tensor(memory.data() + at, DType::float32, {2, 3, 4, 2});
    };
    const auto statistics = [this](std::size_t at) {
      return onchip::make_tensor(memory.data() + at, DType::float32, {2, 4, 3});
    };
    outs = {state(0), state(48)};
    lses = {statistics(96), statistics(120)};
    out = state(144);
    lse = statistics(192);
  }

  void run() const { onchip::merge_states(outs, lses, out, lse, {}); }

  [[nodiscard]] bool untouched() const {
    return std::all_of(memory.begin(), memory.end(), [](float x) { return x == 0; });
  }
};

struct BadMerge {
  const char* argument;
  const char* says;
  void (*change)(Merge&);
  ErrorCode code = ErrorCode::invalid_argument;
};

const std::vector<BadMerge>& merge_table() {
  static const std::vector<BadMerge> table = {
      {"outs", "holds 0 parts", [](Merge& m) { m.outs.clear(), m.lses.clear(); }},
      {"outs", "holds 257 parts, expected 1 to 256",
       [](Merge& m) { m.outs.assign(257, m.outs[0]), m.lses.assign(257, m.lses[0]); }},
      {"lses", "holds 1 parts, expected 2", [](Merge& m) { m.lses.pop_back(); }},
      {"out", "not given", [](Merge& m) { m.out = {}; }},
      {"lse", "not given", [](Merge& m) { m.lse = {}; }},
      {"out", "dtype is int32", [](Merge& m) { m.out.dtype = DType::int32; }},
      {"out", "(B, Sq, heads_q, Dv)", [](Merge& m) { m.out.ndim = 2; }},
      {"out", "ndim is 9", [](Merge& m) { m.out.ndim = 9; }},
      {"out", "stride of the last axis", [](Merge& m) { m.out.stride[3] = 2; }},
      {"out", "share memory", [](Merge& m) { m.out.stride[1] = 0; }},
      {"out", "2^62 bytes", [](Merge& m) { m.out.shape[0] = m.out.shape[1] = 1LL << 40; }},
      {"out", "data is null", [](Merge& m) { m.out.data = nullptr; }},
      {"out", "device type is 3",
       [](Merge& m) { m.out.device.type = static_cast<onchip::DeviceType>(3); }},
      {"lse", "shape is (2, 3, 3)", [](Merge& m) { m.lse.shape[1] = 3; }},
      {"lse", "dtype is float16", [](Merge& m) { m.lse.dtype = DType::float16; }},
      {"lse", "lies on CUDA device 0, expected the CPU as out",
       [](Merge& m) { m.lse.device.type = onchip::DeviceType::cuda; }},
      {"lse", "share memory", [](Merge& m) { m.lse.stride[1] = 0; }},
      {"outs", "outs[1]: shape is (2, 3, 4, 1)", [](Merge& m) { m.outs[1].shape[3] = 1; }},
      {"outs", "outs[0]: dtype is float64", [](Merge& m) { m.outs[0].dtype = DType::float64; }},
      {"outs", "outs[1]: data is null", [](Merge& m) { m.outs[1].data = nullptr; }},
      {"lses", "lses[0]: shape is (2, 4, 2)", [](Merge& m) { m.lses[0].shape[2] = 2; }},
      {"lses", "lses[1]: dtype is bfloat16", [](Merge& m) { m.lses[1].dtype = DType::bfloat16; }},
      {"out", "shares memory with outs[0]", [](Merge& m) { m.out = m.outs[0]; }},
      {"lse", "shares memory with lses[1]", [](Merge& m) { m.lse = m.lses[1]; }},
      {"out", "shares memory with lse", [](Merge& m) { m.lse.data = m.out.data; }},
      {"out", "no CUDA backend",
       [](Merge& m) {
         for (TensorView* t : {&m.out, &m.lse, &m.outs[0], &m.outs[1], &m.lses[0], &m.lses[1]}) {
           t->device.type = onchip::DeviceType::cuda;
         }
       },
       ErrorCode::unsupported},
  };
  return table;
}

class MergeErrors : public ::testing::TestWithParam<BadMerge> {};

TEST_P(MergeErrors, NameTheArgument) {
  if (GetParam().code == ErrorCode::unsupported && scene::has_cuda_backend()) {
    GTEST_SKIP() << "this build has a CUDA backend";
  }
  Merge merge;
  GetParam().change(merge);
  scene::expect_error([&] { merge.run(); }, GetParam().code, GetParam().argument, GetParam().says);
  EXPECT_TRUE(merge.untouched());
}

INSTANTIATE_TEST_SUITE_P(Table, MergeErrors, ::testing::ValuesIn(merge_table()),
                         [](const auto& info) {
                           return std::to_string(info.index) + "_" + info.param.argument;
                         });

TEST(MergeErrors, TheGoodOneRuns) {
  Merge merge;
  merge.run();
  EXPECT_FALSE(merge.untouched());
}

// ---------------------------------------------------------------- dropout_mask

TEST(DropoutMaskErrors, NameTheArgument) {
  std::array<std::uint8_t, 24> memory;
  memory.fill(7);
  const TensorView good = onchip::make_tensor(memory.data(), DType::uint8, {1, 2, 3, 4});
  const auto expect = [&](const TensorView& mask, double p, const char* argument,
                          const char* says) {
    expect_invalid([&] { onchip::dropout_mask(mask, p, 1, 0, {}); }, argument, says);
  };
  const auto changed = [&](void (*change)(TensorView&)) {
    TensorView mask = good;
    change(mask);
    return mask;
  };
  expect({}, 0.5, "mask", "not given");
  expect(changed([](TensorView& m) { m.ndim = 3; }), 0.5, "mask", "(B, heads_q, Sq, Sk)");
  expect(changed([](TensorView& m) { m.dtype = DType::float32; }), 0.5, "mask", "expected uint8");
  expect(changed([](TensorView& m) { m.shape[2] = -1; }), 0.5, "mask", "(1, 2, -1, 4)");
  expect(changed([](TensorView& m) { m.stride[2] = 3; }), 0.5, "mask", "share memory");
  expect(changed([](TensorView& m) { m.data = nullptr; }), 0.5, "mask", "data is null");
  expect(good, 1.0, "p", "is 1, expected 0 <= p < 1");
  expect(good, -0.5, "p", "is -0.5");
  expect(good, 0.9999999, "p", "below 65536");
  if (!scene::has_cuda_backend()) {
    scene::expect_error(
        [&] {
          onchip::dropout_mask(
              changed([](TensorView& m) { m.device.type = onchip::DeviceType::cuda; }), 0.5, 1, 0,
              {});
        },
        ErrorCode::unsupported, "mask", "no CUDA backend");
  }
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](int x) { return x == 7; }));
}

// ---------------------------------------------------------------- devices

TEST(PlanErrors, NameWhoWouldDoIt) {
  Scene scene(Kind::dense, kForward);
  Attention& a = scene.attention;
  for (TensorView* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.bias, &a.alibi_slopes, &a.sinks}) {
    t->device = {onchip::DeviceType::cuda, 0};
  }
  if (!scene::has_cuda_backend()) {
    scene::expect_error([&] { (void)onchip::plan(a, kForward); }, ErrorCode::unsupported, "q",
                        "no CUDA backend");
  }
  a.v.shape[3] = a.out.shape[3] = 5;
  scene::expect_error([&] { (void)onchip::plan(a, kForward, onchip::device_info("a100")); },
                      ErrorCode::unsupported, "v", "the cpu backend");
  expect_invalid([] { (void)onchip::device_info("GeForce 256"); }, "device", "H100");
}

// ---------------------------------------------------------------- allocations

TEST(Launch, AllocatesNothing) {
  onchip::set_num_threads(1);
  for (const Kind kind : {Kind::dense, Kind::packed, Kind::paged}) {
    for (const Pass pass : {kForward, kBackward}) {
      if (kind == Kind::paged && pass == kBackward) continue;
      Scene scene(kind, pass);
      const onchip::Plan plan = onchip::plan(scene.attention, pass);
      struct alignas(256) Line {
        std::byte bytes[256];
      };
      std::vector<Line> workspace(plan.workspace_bytes() / 256 + 1);
      const auto run = pass == kForward ? onchip::forward : onchip::backward;
      const std::int64_t before = allocations();
      run(plan, scene.attention, workspace.data(), plan.workspace_bytes(), {});
      EXPECT_EQ(allocations(), before);
    }
  }
  Merge merge;
  const std::int64_t before = allocations();
  merge.run();
  EXPECT_EQ(allocations(), before);
  onchip::set_num_threads(0);
}

}  // namespace
