// SPDX-License-Identifier: Apache-2.0
#include "scene.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "onchip/plan.hpp"

namespace scene {

using onchip::Attention;
using onchip::DType;
using onchip::Pass;
using onchip::TensorView;

Scene::Scene(Kind kind, Pass pass) {
  add_inputs(kind);
  if (pass == Pass::backward) add_gradients();
  remember();
}

TensorView Scene::add(std::initializer_list<std::int64_t> shape) {
  const TensorView view = onchip::make_tensor(nullptr, DType::float32, shape);
  const auto count = static_cast<std::size_t>(view.shape[0] * view.stride[0]);
  // A line more on both sides, so that views one element off still read their own memory.
  auto& memory = tensors_.emplace_back(count * sizeof(float) / sizeof(Line) + 3);
  auto* first = reinterpret_cast<float*>(memory[1].bytes);
  for (std::size_t n = 0; n < count; ++n) {
    first[n] = std::sin(static_cast<float>(n + 31 * tensors_.size()));
  }
  return onchip::make_tensor(first, DType::float32, shape);
}

TensorView Scene::add_integers(std::initializer_list<std::int64_t> shape,
                               std::initializer_list<std::int32_t> values) {
  auto& memory = tensors_.emplace_back(3);
  auto* first = reinterpret_cast<std::int32_t*>(memory[1].bytes);
  std::copy(values.begin(), values.end(), first);
  return onchip::make_tensor(first, DType::int32, shape);
}

void Scene::add_inputs(Kind kind) {
  Attention& a = attention;
  if (kind == Kind::packed) {
    a.q = add({9, 4, 8});
    a.k = add({10, 2, 8});
    a.v = add({10, 2, 6});
    a.cu_seqlens_q = add_integers({3}, {0, 4, 9});
    a.cu_seqlens_k = add_integers({3}, {0, 7, 10});
    a.seqused_q = add_integers({2}, {4, 5});
    a.seqused_k = add_integers({2}, {6, 3});
    a.out = add({9, 4, 6});
    a.lse = add({4, 9});
  } else {
    a.q = add({2, 5, 4, 8});
    a.k = kind == Kind::paged ? add({5, 4, 2, 8}) : add({2, 7, 2, 8});
    a.v = kind == Kind::paged ? add({5, 4, 2, 6}) : add({2, 7, 2, 6});
    a.out = add({2, 5, 4, 6});
    a.lse = add({2, 4, 5});
  }
  if (kind == Kind::paged) {
    a.block_table = add_integers({2, 2}, {0, 1, 4, 2});
    a.seqused_k = add_integers({2}, {3, 7});
  }
  a.bias = kind == Kind::paged ? add({2, 4, 5, 8}) : add({2, 4, 5, 7});
  a.alibi_slopes = add({4});
  a.sinks = add({4});
}

void Scene::add_gradients() {
  Attention& a = attention;
  const bool packed = a.q.ndim == 3;
  a.dout = packed ? add({9, 4, 6}) : add({2, 5, 4, 6});
  a.dlse = packed ? add({4, 9}) : add({2, 4, 5});
  a.dq = packed ? add({9, 4, 8}) : add({2, 5, 4, 8});
  a.dk = packed ? add({10, 2, 8}) : add({2, 7, 2, 8});
  a.dv = packed ? add({10, 2, 6}) : add({2, 7, 2, 6});
  a.dbias = add({2, 4, 5, 7});
  a.dsinks = add({4});
}

void Scene::launch(const onchip::Plan& plan, Pass pass) {
  const std::size_t bytes = plan.workspace_bytes();
  std::vector<Line> workspace(bytes / sizeof(Line) + 1);
  const std::vector<Line> before = workspace;
  const auto run = pass == Pass::forward ? onchip::forward : onchip::backward;
  try {
    run(plan, attention, workspace.data(), bytes, {});
  } catch (...) {
    workspace_touched_ =
        std::memcmp(workspace.data(), before.data(), workspace.size() * sizeof(Line)) != 0;
    throw;
  }
}

void Scene::remember() { before_ = tensors_; }

bool Scene::untouched() const {
  const auto same = [](const std::vector<Line>& a, const std::vector<Line>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(Line)) == 0;
  };
  return !workspace_touched_ &&
         std::equal(tensors_.begin(), tensors_.end(), before_.begin(), before_.end(), same);
}

TensorView view_of_shape(std::initializer_list<std::int64_t> shape) {
  static float memory[1024];
  return onchip::make_tensor(memory, DType::float32, shape);
}

TensorView packed_lengths() {
  static std::int32_t lengths[3] = {0, 7, 10};
  return onchip::make_tensor(lengths, DType::int32, {3});
}

void expect_error(const std::function<void()>& call, onchip::ErrorCode code,
                  const std::string& argument, const std::string& says) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one that says " << argument << ": " << says;
  } catch (const onchip::Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    const std::size_t end = message.find_first_of(": [");
    EXPECT_EQ(message.substr(0, end), argument) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message << "\nexpected: " << says;
  }
}

bool has_cuda_backend() {
  try {
    static_cast<void>(onchip::device_info("cuda"));
    return true;
  } catch (const onchip::Error& error) {
    return error.code() != onchip::ErrorCode::unsupported;
  }
}

}  // namespace scene
