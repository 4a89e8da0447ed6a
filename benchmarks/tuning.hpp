// SPDX-License-Identifier: Apache-2.0
// What the developers' programs share: a cell of `onchip bench` in memory, and its plan with
// another kernel in it. They see the library's insides, as the C++ tests do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kernel.hpp"
#include "onchip/attention.hpp"

namespace onchip::tuning {

// The cells of `onchip bench` on a GPU: as many tokens and elements of Q in each.
constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kWidth = 2048;
struct Dims {
  std::int64_t q, v;
};
void check(cudaError_t status, const char* what);

class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

struct Buffers {
  Memory q{kTokens * kWidth * 2}, k{kTokens * kWidth * 2}, v{kTokens * kWidth * 2};
  Memory out{kTokens * kWidth * 2}, workspace{std::size_t{64} << 20};
  Buffers();
};

struct Cell {
  Dims dims;
  bool causal;
  std::int64_t length;
};

Attention problem_of(const Cell& cell, const Buffers& buffers);

/// The planner's plan with another kernel in it.
Plan plan_with(const Plan& plan, const cuda::Kernel& kernel);

/// One kernel in one cell.
struct Contender {
  const cuda::Kernel* kernel;
  Plan plan;
  int calls = 1;  // of a sample
  double error = 0;
  std::vector<double> samples = {};
};

void queue(const Contender& x, const Attention& a, const Buffers& buffers, int calls);

/// Seconds of one call. A first one is not timed: the host queues the others under it.
double sample(const Contender& x, const Attention& a, const Buffers& buffers);

std::vector<float> result(const Contender& x, const Attention& a, const Buffers& buffers);

/// The greatest difference; infinite where one is NaN.
double difference(const std::vector<float>& got, const std::vector<float>& expected);

}  // namespace onchip::tuning
