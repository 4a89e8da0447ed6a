// SPDX-License-Identifier: Apache-2.0
// The C ABI as such: sizes of structs, status, messages, plans. That it computes what the C++ API
// does is tested by cases_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "onchip/onchip.h"

namespace {

using nlohmann::json;

onchip_tensor tensor(void* data, std::initializer_list<std::int64_t> shape,
                     onchip_dtype dtype = ONCHIP_FLOAT32) {
  onchip_tensor t{};
  t.data = data;
  t.dtype = dtype;
  for (const std::int64_t extent : shape) t.shape[t.ndim++] = extent;
  std::int64_t stride = 1;
  for (std::int32_t axis = t.ndim; axis-- > 0;) {
    t.stride[axis] = stride;
    stride *= t.shape[axis];
  }
  return t;
}

struct FreePlan {
  void operator()(onchip_plan* plan) const { onchip_plan_destroy(plan); }
};
using PlanPtr = std::unique_ptr<onchip_plan, FreePlan>;

PlanPtr make_plan(const onchip_attention& args, onchip_pass pass) {
  onchip_plan* plan = nullptr;
  EXPECT_EQ(onchip_plan_create(&args, pass, &plan), ONCHIP_SUCCESS) << onchip_last_error();
  return PlanPtr(plan);
}

struct alignas(256) Line {
  std::array<std::byte, 256> bytes;
};

onchip_status launch(decltype(onchip_forward)& pass, const onchip_plan* plan,
                     const onchip_attention& args) {
  const std::size_t bytes = onchip_plan_workspace_bytes(plan);
  std::vector<Line> workspace(bytes / sizeof(Line) + 1);
  return pass(plan, &args, workspace.data(), bytes, nullptr);
}

/// The worked row of the documentation: scores (1, 2, 0, 3), values ((1,0), (0,1), (2,1), (1,3)).
class CApi : public ::testing::Test {
 protected:
  CApi() {
    EXPECT_EQ(onchip_attention_init(&args, sizeof args), ONCHIP_SUCCESS);
    args.has_scale = 1;
    args.scale = 1.0;
    args.q = tensor(q.data(), {1, 1, 1, 1});
    args.k = tensor(k.data(), {1, 4, 1, 1});
    args.v = tensor(v.data(), {1, 4, 1, 2});
    args.out = tensor(out.data(), {1, 1, 1, 2});
    args.lse = tensor(lse.data(), {1, 1, 1});
    args.dout = tensor(dout.data(), {1, 1, 1, 2});
    args.dq = tensor(dq.data(), {1, 1, 1, 1});
    args.dk = tensor(dk.data(), {1, 4, 1, 1});
    args.dv = tensor(dv.data(), {1, 4, 1, 2});
  }

  void expect_message(const std::string& part) {
    EXPECT_NE(std::string(onchip_last_error()).find(part), std::string::npos)
        << onchip_last_error();
  }

  void expect_worked_row() const {
    EXPECT_NEAR(out[0], 0.795176, 1e-6);
    EXPECT_NEAR(out[1], 2.200684, 1e-6);
    EXPECT_NEAR(lse[0], 3.4401897, 1e-6);
  }

  onchip_attention args;
  std::array<float, 1> q{1}, lse{-7}, dq{-7};
  std::array<float, 4> k{1, 2, 0, 3}, dk{};
  std::array<float, 8> v{1, 0, 0, 1, 2, 1, 1, 3}, dv{};
  std::array<float, 2> out{-7, -7}, dout{1, 0};
};

TEST_F(CApi, ComputesTheWorkedRow) {
  const PlanPtr plan = make_plan(args, ONCHIP_FORWARD);
  ASSERT_EQ(launch(onchip_forward, plan.get(), args), ONCHIP_SUCCESS) << onchip_last_error();
  expect_worked_row();
}

TEST_F(CApi, ComputesItsGradients) {
  const PlanPtr forward = make_plan(args, ONCHIP_FORWARD);
  ASSERT_EQ(launch(onchip_forward, forward.get(), args), ONCHIP_SUCCESS);
  const PlanPtr backward = make_plan(args, ONCHIP_BACKWARD);
  ASSERT_EQ(launch(onchip_backward, backward.get(), args), ONCHIP_SUCCESS) << onchip_last_error();
  double dq_expected = 0;
  for (std::size_t j = 0; j < 4; ++j) {
    const double p = std::exp(static_cast<double>(k[j]) - 3.4401897);
    const double ds = p * (static_cast<double>(v[2 * j]) - 0.795176);
    EXPECT_NEAR(dv[2 * j], p, 1e-6) << j;
    EXPECT_EQ(dv[2 * j + 1], 0) << j;
    EXPECT_NEAR(dk[j], ds, 1e-6) << j;
    dq_expected += ds * static_cast<double>(k[j]);
  }
  EXPECT_NEAR(dq[0], dq_expected, 1e-6);
}

// ---- struct_size

TEST_F(CApi, InitSetsTheDefaultsAndNoByteBeyond) {
  struct {
    onchip_attention args;
    unsigned char newer[40], guard;
  } memory;
  std::memset(static_cast<void*>(&memory), 0xAB, sizeof memory);
  ASSERT_EQ(onchip_attention_init(&memory.args, sizeof(onchip_attention) + 40), ONCHIP_SUCCESS);
  EXPECT_EQ(memory.args.struct_size, sizeof(onchip_attention) + 40);
  EXPECT_EQ(memory.args.has_scale, 0);
  EXPECT_EQ(memory.args.window_left, -1);
  EXPECT_EQ(memory.args.window_right, -1);
  EXPECT_EQ(memory.args.num_splits, 1);
  EXPECT_EQ(memory.args.causal, 0);
  EXPECT_EQ(memory.args.dsinks.ndim, 0);
  EXPECT_EQ(memory.args.softmax, ONCHIP_SOFTMAX_AUTOMATIC);
  for (const unsigned char byte : memory.newer) EXPECT_EQ(byte, 0);
  EXPECT_EQ(memory.guard, 0xAB);
}

/// A header that ends after `out` and `lse`: memory behind them is not the struct's.
TEST_F(CApi, TakesAnOlderHeadersStruct) {
  args.struct_size = offsetof(onchip_attention, dout);
  std::memset(static_cast<void*>(&args.dout), 0xFF, sizeof args - args.struct_size);
  const PlanPtr plan = make_plan(args, ONCHIP_FORWARD);
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(launch(onchip_forward, plan.get(), args), ONCHIP_SUCCESS) << onchip_last_error();
  expect_worked_row();
}

TEST_F(CApi, WhatAnOlderHeaderLacksIsNotGiven) {
  args.struct_size = offsetof(onchip_attention, dsinks);
  make_plan(args, ONCHIP_BACKWARD);
  args.struct_size = offsetof(onchip_attention, dv);
  onchip_plan* plan = nullptr;
  EXPECT_EQ(onchip_plan_create(&args, ONCHIP_BACKWARD, &plan), ONCHIP_INVALID_ARGUMENT);
  expect_message("dv: not given");
}

/// A header that ends after the last tensor is older than the choice of a softmax.
TEST_F(CApi, TakesASoftmaxWhereTheHeaderHasOne) {
  onchip_device_info device{};
  device.struct_size = sizeof device;
  ASSERT_EQ(onchip_get_device_info("H200", &device), ONCHIP_SUCCESS);
  args.q = tensor(nullptr, {2, 1024, 8, 64}, ONCHIP_BFLOAT16);
  args.k = args.v = args.out = args.q;
  args.lse = onchip_tensor{};
  const auto kernel = [&](onchip_softmax softmax) {
    args.softmax = softmax;
    onchip_plan* made = nullptr;
    EXPECT_EQ(onchip_plan_create_for_device(&args, ONCHIP_FORWARD, &device, &made), ONCHIP_SUCCESS)
        << onchip_last_error();
    const PlanPtr plan(made);
    onchip_plan_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(onchip_plan_get_info(plan.get(), &info), ONCHIP_SUCCESS);
    return std::string(info.kernel);
  };
  EXPECT_EQ(kernel(ONCHIP_SOFTMAX_AUTOMATIC), "sm90_fwd_bfloat16_d64");
  EXPECT_EQ(kernel(ONCHIP_SOFTMAX_SAFE), "sm90_fwd_bfloat16_d64");
  onchip_plan* made = nullptr;
  for (const onchip_softmax softmax : std::initializer_list<onchip_softmax>{2, -1, INT64_MIN}) {
    args.softmax = softmax;
    EXPECT_EQ(onchip_plan_create(&args, ONCHIP_FORWARD, &made), ONCHIP_INVALID_ARGUMENT);
    expect_message("softmax: is " + std::to_string(softmax) + ", expected ONCHIP_SOFTMAX_");
  }
  args.struct_size = offsetof(onchip_attention, softmax);
  EXPECT_EQ(kernel(7), "sm90_fwd_bfloat16_d64");  // not read
}

TEST_F(CApi, TakesANewerHeadersStructThatAsksNothingNew) {
  struct {
    onchip_attention args;
    std::array<std::int64_t, 3> newer;
  } memory{args, {0, 0, 0}};
  memory.args.struct_size = sizeof memory;
  const PlanPtr plan = make_plan(memory.args, ONCHIP_FORWARD);
  ASSERT_EQ(launch(onchip_forward, plan.get(), memory.args), ONCHIP_SUCCESS);
  expect_worked_row();

  memory.newer[2] = 1;
  onchip_plan* refused = nullptr;
  EXPECT_EQ(onchip_plan_create(&memory.args, ONCHIP_FORWARD, &refused), ONCHIP_INVALID_ARGUMENT);
  expect_message("struct_size");
  EXPECT_EQ(refused, nullptr);
}

TEST_F(CApi, RefusesSizesOfNoHeader) {
  const std::size_t sizes[] = {0,
                               7,
                               sizeof(std::size_t),
                               offsetof(onchip_attention, v),
                               offsetof(onchip_attention, lse) + 8,
                               sizeof args - 1,
                               std::size_t{1} << 40,
                               SIZE_MAX};
  for (const std::size_t size : sizes) {
    args.struct_size = size;
    onchip_plan* plan = nullptr;
    EXPECT_EQ(onchip_plan_create(&args, ONCHIP_FORWARD, &plan), ONCHIP_INVALID_ARGUMENT) << size;
    expect_message("args: struct_size is " + std::to_string(size));
  }
  EXPECT_EQ(onchip_attention_init(&args, 0), ONCHIP_INVALID_ARGUMENT);
  EXPECT_EQ(onchip_attention_init(&args, SIZE_MAX), ONCHIP_INVALID_ARGUMENT);
}

TEST_F(CApi, FillsAsMuchOfAnInfoAsTheCallerHas) {
  const PlanPtr plan = make_plan(args, ONCHIP_FORWARD);
  onchip_plan_info info;
  std::memset(static_cast<void*>(&info), 0xAB, sizeof info);
  info.struct_size = offsetof(onchip_plan_info, tile_k);
  ASSERT_EQ(onchip_plan_get_info(plan.get(), &info), ONCHIP_SUCCESS) << onchip_last_error();
  EXPECT_GT(info.tile_q, 0);
  std::int64_t untouched;
  std::memset(&untouched, 0xAB, sizeof untouched);
  EXPECT_EQ(info.tile_k, untouched);
  EXPECT_EQ(info.struct_size, offsetof(onchip_plan_info, tile_k));
  info.struct_size = 4;
  EXPECT_EQ(onchip_plan_get_info(plan.get(), &info), ONCHIP_INVALID_ARGUMENT);
  expect_message("info: struct_size is 4");
}

TEST_F(CApi, TakesADeviceOfAnOlderHeader) {
  onchip_device_info device{};
  device.struct_size = sizeof device;
  ASSERT_EQ(onchip_get_device_info("H200", &device), ONCHIP_SUCCESS);
  args.q = tensor(nullptr, {2, 1024, 8, 64}, ONCHIP_BFLOAT16);
  args.k = args.v = args.out = args.q;
  args.lse = onchip_tensor{};
  const auto kernel = [&] {
    onchip_plan* made = nullptr;
    EXPECT_EQ(onchip_plan_create_for_device(&args, ONCHIP_FORWARD, &device, &made), ONCHIP_SUCCESS)
        << onchip_last_error();
    const PlanPtr plan(made);
    onchip_plan_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(onchip_plan_get_info(plan.get(), &info), ONCHIP_SUCCESS);
    return std::string(info.kernel);
  };
  device.family = 90;
  EXPECT_EQ(kernel(), "sm90_fwd_bfloat16_d64");
  device.family = 80;
  EXPECT_EQ(kernel(), "sm80_fwd_bfloat16_d64");
  device.struct_size = offsetof(onchip_device_info, family);  // not read: the planner's choice
  EXPECT_EQ(kernel(), "sm90_fwd_bfloat16_d64");
  device.struct_size = sizeof device;
  onchip_plan* made = nullptr;
  for (const std::int64_t family : std::initializer_list<std::int64_t>{85, -80, INT64_MAX}) {
    device.family = family;
    EXPECT_EQ(onchip_plan_create_for_device(&args, ONCHIP_FORWARD, &device, &made),
              ONCHIP_INVALID_ARGUMENT);
    expect_message("device: family is");
  }
}

// ---- Plans

TEST_F(CApi, ToldInfoWordsAndJsonAgree) {
  const PlanPtr plan = make_plan(args, ONCHIP_FORWARD);
  onchip_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(onchip_plan_get_info(plan.get(), &info), ONCHIP_SUCCESS);
  EXPECT_STREQ(info.backend, "cpu");
  EXPECT_STREQ(info.kernel, "cpu_fwd_float32");
  EXPECT_EQ(info.pass, ONCHIP_FORWARD);
  EXPECT_EQ(info.workspace_bytes, onchip_plan_workspace_bytes(plan.get()));
  EXPECT_EQ(info.cost.flops, 2 * 4 * (1 + 2));

  const char* text = nullptr;
  ASSERT_EQ(onchip_plan_json(plan.get(), &text), ONCHIP_SUCCESS);
  const json parsed = json::parse(text);
  EXPECT_EQ(parsed.at("kernel"), info.kernel);
  EXPECT_EQ(parsed.at("tile_q"), info.tile_q);
  EXPECT_EQ(parsed.at("tile_k"), info.tile_k);
  EXPECT_EQ(parsed.at("workspace_bytes"), info.workspace_bytes);
  EXPECT_EQ(parsed.at("cost").at("flops"), info.cost.flops);

  const char* words = nullptr;
  ASSERT_EQ(onchip_plan_explain(plan.get(), &words), ONCHIP_SUCCESS);
  EXPECT_NE(std::string(words).find(info.kernel), std::string::npos) << words;
  const char* again = nullptr;
  ASSERT_EQ(onchip_plan_explain(plan.get(), &again), ONCHIP_SUCCESS);
  EXPECT_EQ(words, again) << "the text lives as long as the plan";
}

TEST_F(CApi, PlansForEveryNamedDevice) {
  std::array<char, 1> unused{};
  args.q = tensor(unused.data(), {2, 1024, 8, 64}, ONCHIP_BFLOAT16);
  args.k = args.v = args.q;
  args.out = args.q;
  args.lse = onchip_tensor{};
  std::int32_t count = 0;
  for (; onchip_known_device(count) != nullptr; ++count) {
    onchip_device_info device{};
    device.struct_size = sizeof device;
    ASSERT_EQ(onchip_get_device_info(onchip_known_device(count), &device), ONCHIP_SUCCESS);
    EXPECT_STREQ(device.name, onchip_known_device(count));
    EXPECT_EQ(device.type, ONCHIP_CUDA);
    EXPECT_EQ(device.index, -1);
    const bool hopper = device.compute_capability == 90;
    EXPECT_EQ(device.family, hopper ? 90 : 80);
    onchip_plan* made = nullptr;
    ASSERT_EQ(onchip_plan_create_for_device(&args, ONCHIP_FORWARD, &device, &made), ONCHIP_SUCCESS)
        << onchip_last_error();
    const PlanPtr plan(made);
    onchip_plan_info info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(onchip_plan_get_info(plan.get(), &info), ONCHIP_SUCCESS);
    EXPECT_STREQ(info.device, device.name);
    EXPECT_STREQ(info.backend, hopper ? "sm90" : "sm80");
    // The memory is the CPU's, so that it cannot be launched there.
    EXPECT_EQ(launch(onchip_forward, plan.get(), args), ONCHIP_INVALID_ARGUMENT);
    expect_message(device.name);
  }
  EXPECT_GE(count, 6);
  EXPECT_EQ(onchip_known_device(-1), nullptr);
}

TEST_F(CApi, KnowsThisMachine) {
  onchip_device_info device{};
  device.struct_size = sizeof device;
  ASSERT_EQ(onchip_get_device_info("CPU", &device), ONCHIP_SUCCESS);
  EXPECT_EQ(device.type, ONCHIP_CPU);
  EXPECT_EQ(device.units, onchip_num_threads());
  EXPECT_NE(std::string(device.name).find(onchip_cpu_isa()), std::string::npos) << device.name;
  EXPECT_EQ(onchip_get_device_info("Voodoo 2", &device), ONCHIP_INVALID_ARGUMENT);
  expect_message("Voodoo 2");
  expect_message("H200");
}

TEST_F(CApi, ADeviceOfTheCallersOwn) {
  onchip_device_info device{};
  device.struct_size = sizeof device;
  ASSERT_EQ(onchip_get_device_info("cpu", &device), ONCHIP_SUCCESS);
  device.units = 3;
  onchip_plan* made = nullptr;
  ASSERT_EQ(onchip_plan_create_for_device(&args, ONCHIP_FORWARD, &device, &made), ONCHIP_SUCCESS);
  const PlanPtr plan(made);
  ASSERT_EQ(launch(onchip_forward, plan.get(), args), ONCHIP_SUCCESS) << onchip_last_error();
  expect_worked_row();
  device.type = 9;
  EXPECT_EQ(onchip_plan_create_for_device(&args, ONCHIP_FORWARD, &device, &made),
            ONCHIP_INVALID_ARGUMENT);
  expect_message("device: type is 9");
}

// ---- Errors

TEST_F(CApi, NullPointersAreRefusedByName) {
  const PlanPtr plan = make_plan(args, ONCHIP_FORWARD);
  onchip_plan* made = nullptr;
  const char* text = nullptr;
  onchip_plan_info info{};
  info.struct_size = sizeof info;
  onchip_device_info device{};
  device.struct_size = sizeof device;
  const onchip_tensor t = args.out;
  const auto refuse = [&](onchip_status status, const char* name) {
    EXPECT_EQ(status, ONCHIP_INVALID_ARGUMENT) << name;
    expect_message(std::string(name) + ": is NULL");
  };
  refuse(onchip_attention_init(nullptr, sizeof args), "args");
  refuse(onchip_plan_create(nullptr, ONCHIP_FORWARD, &made), "args");
  refuse(onchip_plan_create(&args, ONCHIP_FORWARD, nullptr), "plan");
  refuse(onchip_plan_create_for_device(&args, ONCHIP_FORWARD, nullptr, &made), "device");
  refuse(onchip_plan_get_info(nullptr, &info), "plan");
  refuse(onchip_plan_get_info(plan.get(), nullptr), "info");
  refuse(onchip_plan_explain(nullptr, &text), "plan");
  refuse(onchip_plan_json(plan.get(), nullptr), "text");
  refuse(onchip_get_device_info(nullptr, &device), "name");
  refuse(onchip_get_device_info("cpu", nullptr), "info");
  refuse(onchip_forward(nullptr, &args, nullptr, 0, nullptr), "plan");
  refuse(onchip_forward(plan.get(), nullptr, nullptr, 0, nullptr), "args");
  refuse(onchip_backward(nullptr, &args, nullptr, 0, nullptr), "plan");
  refuse(onchip_merge_states(nullptr, &t, 1, &t, &t, nullptr), "outs");
  refuse(onchip_merge_states(&t, nullptr, 1, &t, &t, nullptr), "lses");
  refuse(onchip_merge_states(&t, &t, 1, nullptr, &t, nullptr), "out");
  refuse(onchip_merge_states(&t, &t, 1, &t, nullptr, nullptr), "lse");
  refuse(onchip_dropout_mask(nullptr, 0.5, 1, 0, nullptr), "mask");
  EXPECT_EQ(onchip_plan_workspace_bytes(nullptr), 0);
  onchip_plan_destroy(nullptr);
}

TEST_F(CApi, StatusTellsWhatIsWrong) {
  onchip_plan* plan = nullptr;
  EXPECT_EQ(onchip_plan_create(&args, 2, &plan), ONCHIP_INVALID_ARGUMENT);
  expect_message("pass: is 2");
  args.q.dtype = 99;
  EXPECT_EQ(onchip_plan_create(&args, ONCHIP_FORWARD, &plan), ONCHIP_INVALID_ARGUMENT);
  expect_message("q: dtype");
  EXPECT_EQ(plan, nullptr);
}

TEST_F(CApi, StatusTellsThatABackendIsMissing) {
  onchip_device_info info;
  info.struct_size = sizeof info;
  if (onchip_get_device_info("cuda", &info) != ONCHIP_UNSUPPORTED) {
    GTEST_SKIP() << "this build has a CUDA backend";
  }
  onchip_plan* plan = nullptr;
  args.q.device.type = args.k.device.type = args.v.device.type = ONCHIP_CUDA;
  args.out.device.type = args.lse.device.type = ONCHIP_CUDA;
  EXPECT_EQ(onchip_plan_create(&args, ONCHIP_FORWARD, &plan), ONCHIP_UNSUPPORTED);
  expect_message("CPU");
  EXPECT_EQ(plan, nullptr);
}

TEST_F(CApi, ABadLaunchWritesNothing) {
  const PlanPtr plan = make_plan(args, ONCHIP_FORWARD);
  ASSERT_GT(onchip_plan_workspace_bytes(plan.get()), 0);
  EXPECT_EQ(onchip_forward(plan.get(), &args, nullptr, 0, nullptr), ONCHIP_INVALID_ARGUMENT);
  expect_message("workspace");
  EXPECT_EQ(launch(onchip_backward, plan.get(), args), ONCHIP_INVALID_ARGUMENT);
  args.causal = 1;
  EXPECT_EQ(launch(onchip_forward, plan.get(), args), ONCHIP_INVALID_ARGUMENT);
  expect_message("plan");
  args.causal = 0;
  args.v.data = nullptr;
  EXPECT_EQ(launch(onchip_forward, plan.get(), args), ONCHIP_INVALID_ARGUMENT);
  expect_message("v: ");
  EXPECT_EQ(out, (std::array<float, 2>{-7, -7}));
  EXPECT_EQ(lse[0], -7);
}

TEST_F(CApi, EachThreadHasItsOwnMessage) {
  onchip_plan* plan = nullptr;
  EXPECT_EQ(onchip_plan_create(&args, 5, &plan), ONCHIP_INVALID_ARGUMENT);
  const std::string here = onchip_last_error();
  std::string fresh = "not read", there;
  std::thread([&] {
    fresh = onchip_last_error();
    EXPECT_EQ(onchip_set_num_threads(-4), ONCHIP_INVALID_ARGUMENT);
    there = onchip_last_error();
  }).join();
  EXPECT_EQ(fresh, "");
  EXPECT_NE(there.find("-4"), std::string::npos) << there;
  EXPECT_EQ(here, onchip_last_error());
}

// ---- The other functions

TEST_F(CApi, MergesTwoHalves) {
  std::array<float, 4> outs{};
  std::array<float, 2> lses{};
  std::array<onchip_tensor, 2> out_parts, lse_parts;
  for (std::size_t n = 0; n < 2; ++n) {
    onchip_attention half = args;
    half.k = tensor(k.data() + 2 * n, {1, 2, 1, 1});
    half.v = tensor(v.data() + 4 * n, {1, 2, 1, 2});
    half.out = out_parts[n] = tensor(outs.data() + 2 * n, {1, 1, 1, 2});
    half.lse = lse_parts[n] = tensor(lses.data() + n, {1, 1, 1});
    ASSERT_EQ(launch(onchip_forward, make_plan(half, ONCHIP_FORWARD).get(), half), ONCHIP_SUCCESS);
  }
  ASSERT_EQ(
      onchip_merge_states(out_parts.data(), lse_parts.data(), 2, &args.out, &args.lse, nullptr),
      ONCHIP_SUCCESS)
      << onchip_last_error();
  expect_worked_row();
  EXPECT_EQ(
      onchip_merge_states(out_parts.data(), lse_parts.data(), 0, &args.out, &args.lse, nullptr),
      ONCHIP_INVALID_ARGUMENT);
  expect_message("outs");
}

TEST(CApiMask, KeepsAllAtZeroAndSomeAtHalf) {
  std::array<std::uint8_t, 256> keep{};
  const onchip_tensor mask = tensor(keep.data(), {1, 2, 8, 16}, ONCHIP_UINT8);
  ASSERT_EQ(onchip_dropout_mask(&mask, 0.0, 7, 0, nullptr), ONCHIP_SUCCESS);
  for (const std::uint8_t bit : keep) ASSERT_EQ(bit, 1);
  ASSERT_EQ(onchip_dropout_mask(&mask, 0.5, 7, 0, nullptr), ONCHIP_SUCCESS);
  const auto kept = std::count(keep.begin(), keep.end(), 1);
  EXPECT_EQ(kept + std::count(keep.begin(), keep.end(), 0), 256);
  EXPECT_GT(kept, 64);
  EXPECT_LT(kept, 192);
  EXPECT_EQ(onchip_dropout_mask(&mask, 1.0, 7, 0, nullptr), ONCHIP_INVALID_ARGUMENT);
}

TEST_F(CApi, RunsOnTheCallersExecutor) {
  struct Counter {
    std::atomic<int> tasks{0};
  } counter;
  onchip_executor executor{};
  executor.struct_size = sizeof executor;
  executor.self = &counter;
  executor.concurrency = 2;
  executor.run = [](void* self, std::int32_t count, void (*task)(void*, std::int32_t),
                    void* state) {
    static_cast<Counter*>(self)->tasks += count;
    for (std::int32_t index = 0; index < count; ++index) task(state, index);
  };
  ASSERT_EQ(onchip_set_executor(&executor), ONCHIP_SUCCESS) << onchip_last_error();
  EXPECT_EQ(onchip_num_threads(), 2);
  std::array<std::uint8_t, 4096> keep{};
  const onchip_tensor mask = tensor(keep.data(), {4, 4, 16, 16}, ONCHIP_UINT8);
  EXPECT_EQ(onchip_dropout_mask(&mask, 0.5, 7, 0, nullptr), ONCHIP_SUCCESS);
  EXPECT_EQ(onchip_set_executor(nullptr), ONCHIP_SUCCESS);
  EXPECT_GT(counter.tasks, 0);

  executor.concurrency = 0;
  EXPECT_EQ(onchip_set_executor(&executor), ONCHIP_INVALID_ARGUMENT);
  expect_message("executor: concurrency");
  executor.concurrency = 1;
  executor.run = nullptr;
  EXPECT_EQ(onchip_set_executor(&executor), ONCHIP_INVALID_ARGUMENT);
  expect_message("executor: run");
}

TEST(CApiThreads, SetsTheNumber) {
  const std::int32_t before = onchip_num_threads();
  ASSERT_EQ(onchip_set_num_threads(3), ONCHIP_SUCCESS);
  EXPECT_EQ(onchip_num_threads(), 3);
  ASSERT_EQ(onchip_set_num_threads(0), ONCHIP_SUCCESS);
  EXPECT_EQ(onchip_num_threads(), before);
}

TEST(CApiVersion, IsTheHeaders) {
  EXPECT_EQ(onchip_version(), std::to_string(ONCHIP_VERSION_MAJOR) + "." +
                                  std::to_string(ONCHIP_VERSION_MINOR) + "." +
                                  std::to_string(ONCHIP_VERSION_PATCH));
}

}  // namespace
