// SPDX-License-Identifier: Apache-2.0
// Problems, devices and random plans for the tests of planner, cost model and explain().
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "host/devices.hpp"
#include "host/planner.hpp"

namespace onchip::host {

inline const DeviceInfo& device(std::string_view name) { return *find_named_device(name); }

inline DeviceInfo hopper() { return device("H200"); }

inline DeviceInfo some_cpu() {
  DeviceInfo info;
  info.name = "AVX2";
  info.units = 4;
  info.on_chip_bytes = 1 << 20;
  info.l2_bytes = 32 << 20;
  info.memory_bytes = std::int64_t{16} << 30;
  info.bandwidth = 40e9;
  info.flops_16bit = info.flops_float32 = 200e9;
  info.flops_float64 = 100e9;
  return info;
}

/// Those of absurd sizes wrap around.
inline Strides dense_strides(std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  Strides strides{.batch = 0, .row = 0, .head = dim};
  (void)__builtin_mul_overflow(heads, dim, &strides.row);
  (void)__builtin_mul_overflow(rows, strides.row, &strides.batch);
  return strides;
}

inline Problem dense(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                     std::int64_t queries, std::int64_t keys, std::int64_t dim,
                     DType dtype = DType::bfloat16) {
  Problem p;
  p.dtype = dtype;
  p.stats_dtype = dtype == DType::float64 ? DType::float64 : DType::float32;
  p.batch = batch;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.seqlen_q = queries;
  p.seqlen_k = keys;
  p.total_q = batch * queries;
  p.total_k = batch * keys;
  p.dim = p.dim_v = dim;
  p.q = p.out = dense_strides(queries, heads_q, dim);
  p.k = p.v = dense_strides(keys, heads_kv, dim);
  p.has_lse = true;
  return p;
}

inline Problem backward_of(Problem p) {
  p.pass = Pass::backward;
  return p;
}

inline std::string plan_error(const Problem& problem, const DeviceInfo& info) {
  try {
    make_plan(problem, info);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    return error.what();
  }
  return "no error";
}

inline Problem random_problem(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const auto length = [&] { return pick(0, 2) == 0 ? pick(0, 8) : pick(0, 20000); };
  const std::int64_t heads_kv = pick(1, 8);
  const DType dtypes[] = {DType::float32, DType::float16, DType::bfloat16};
  Problem p = dense(pick(0, 5), heads_kv * pick(1, 8), heads_kv, length(), length(),
                    8 * pick(1, 32), dtypes[pick(0, 2)]);
  p.dim_v = 8 * pick(1, 32);
  p.pass = pick(0, 1) == 0 ? Pass::forward : Pass::backward;
  if (pick(0, 1) == 0) p.window_right = pick(0, 1) == 0 ? 0 : pick(0, 300);
  if (pick(0, 3) == 0) p.window_left = pick(0, 3000);
  p.num_splits = static_cast<std::int32_t>(pick(0, 2) == 0 ? pick(2, 200) : pick(0, 1));
  if (pick(0, 4) == 0) p.split_size = pick(1, 5000);
  p.deterministic = pick(0, 1) == 0;
  p.has_lse = pick(0, 1) == 0;
  if (pick(0, 4) == 0) p.softcap = 20;
  if (pick(0, 3) == 0) {
    p.packed = p.has_cu_seqlens_k = true;
    p.total_q = pick(0, 20000);
    p.total_k = pick(0, 20000);
    p.seqlen_q = std::min(p.seqlen_q, p.total_q);
    p.seqlen_k = std::min(p.seqlen_k, p.total_k);
  }
  return p;
}

inline std::vector<DeviceInfo> all_devices() {
  std::vector<DeviceInfo> devices = {some_cpu(), hopper()};
  for (const std::string& name : named_devices()) devices.push_back(device(name));
  return devices;
}

inline void for_random_plans(
    const std::function<void(const Problem&, const DeviceInfo&, const PlanInfo&)>& check) {
  std::mt19937_64 random(7);
  const std::vector<DeviceInfo> devices = all_devices();
  for (int round = 0; round < 3000; ++round) {
    const Problem problem = random_problem(random);
    const DeviceInfo& info = devices[static_cast<std::size_t>(round) % devices.size()];
    SCOPED_TRACE(info.name + ", round " + std::to_string(round));
    check(problem, info, make_plan(problem, info));
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace onchip::host
