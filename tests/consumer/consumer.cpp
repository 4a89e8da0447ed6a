// SPDX-License-Identifier: Apache-2.0
// Two keys with scores 0 and ln 3 weigh 1/4 and 3/4.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

#include "onchip/attention.hpp"

namespace {

bool has_cuda() {
  try {
    (void)onchip::device_info("cuda");
    return true;
  } catch (const onchip::Error& error) {
    return error.code() != onchip::ErrorCode::unsupported;
  }
}

}  // namespace

int main() {
  std::array<float, 1> q = {1.0F};
  std::array<float, 2> k = {0.0F, std::log(3.0F)};
  std::array<float, 2> v = {4.0F, 8.0F};
  std::array<float, 1> out = {};
  std::array<float, 1> lse = {};

  onchip::Attention a;
  a.options.scale = 1.0;
  a.q = onchip::make_tensor(q.data(), onchip::DType::float32, {1, 1, 1, 1});
  a.k = onchip::make_tensor(k.data(), onchip::DType::float32, {1, 2, 1, 1});
  a.v = onchip::make_tensor(v.data(), onchip::DType::float32, {1, 2, 1, 1});
  a.out = onchip::make_tensor(out.data(), onchip::DType::float32, {1, 1, 1, 1});
  a.lse = onchip::make_tensor(lse.data(), onchip::DType::float32, {1, 1, 1});

  const onchip::Plan plan = onchip::plan(a, onchip::Pass::forward);
  std::vector<std::byte> memory(plan.workspace_bytes() + 256);
  void* workspace = memory.data();
  std::size_t space = memory.size();
  if (std::align(256, plan.workspace_bytes(), workspace, space) == nullptr) return 2;
  onchip::forward(plan, a, workspace, plan.workspace_bytes(), {});

  bool caught = false;
  try {
    a.q.shape[3] = 3;
    (void)onchip::plan(a, onchip::Pass::forward);
  } catch (const onchip::Error& error) {
    caught = error.code() == onchip::ErrorCode::invalid_argument;
  }
  std::printf("cuda: %s\n", has_cuda() ? "built in" : "not built in");
  const bool right = std::abs(out[0] - 7.0F) < 1e-5F && std::abs(lse[0] - std::log(4.0F)) < 1e-5F;
  std::printf("out %g lse %g, bad shape %s\n", static_cast<double>(out[0]),
              static_cast<double>(lse[0]), caught ? "refused" : "accepted");
  return right && caught ? 0 : 1;
}
