// SPDX-License-Identifier: Apache-2.0
#include "tuning.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>

#include "host/gpu_plan.hpp"
#include "host/hopper_plan.hpp"
#include "host/plan_impl.hpp"

namespace onchip::tuning {
namespace {

/// Normal values as bfloat16: on constant ones a GPU draws less power and runs faster.
void fill(const Memory& memory, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> host(kTokens * kWidth);
  for (std::uint16_t& element : host) {
    const float x = normal(rng);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    element = static_cast<std::uint16_t>(bits >> 16);
  }
  check(cudaMemcpy(memory.data(), host.data(), host.size() * 2, cudaMemcpyHostToDevice), "fill");
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

Memory::Memory(std::size_t bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
Memory::~Memory() { static_cast<void>(cudaFree(data_)); }

Buffers::Buffers() {
  fill(q, 1);
  fill(k, 2);
  fill(v, 3);
}

Attention problem_of(const Cell& cell, const Buffers& buffers) {
  const std::int64_t heads = kWidth / cell.dims.q;
  const auto view = [&](const Memory& memory, std::int64_t dim) {
    return make_tensor(memory.data(), DType::bfloat16,
                       {kTokens / cell.length, cell.length, heads, dim}, {DeviceType::cuda, 0});
  };
  Attention a;
  a.options.causal = cell.causal;
  a.q = view(buffers.q, cell.dims.q);
  a.k = view(buffers.k, cell.dims.q);
  a.v = view(buffers.v, cell.dims.v);
  a.out = view(buffers.out, cell.dims.v);
  return a;
}

Plan plan_with(const Plan& plan, const cuda::Kernel& kernel) {
  detail::PlanImpl impl = plan.impl();
  impl.info.kernel = kernel.name;
  impl.info.tile_q = kernel.tile_q;
  impl.info.tile_k = kernel.tile_k;
  impl.info.warps = kernel.threads / 32;
  impl.info.on_chip_bytes = kernel.shared_bytes;
  const std::int64_t tiles = host::hopper_blocks(impl.problem, kernel.tile_q);
  impl.info.grid = std::min<std::int64_t>(tiles, impl.info.device.units);
  const bool counts_tiles = host::hopper_counts_tiles(impl.problem, impl.info);
  impl.info.workspace_bytes =
      static_cast<std::size_t>(host::gpu_workspace(impl.problem, 1, counts_tiles).bytes);
  return Plan(std::make_shared<const detail::PlanImpl>(impl));
}

void queue(const Contender& x, const Attention& a, const Buffers& buffers, int calls) {
  for (int n = 0; n < calls; ++n) {
    forward(x.plan, a, buffers.workspace.data(), x.plan.workspace_bytes(), {nullptr});
  }
}

double sample(const Contender& x, const Attention& a, const Buffers& buffers) {
  static const std::array<cudaEvent_t, 2> events = [] {
    std::array<cudaEvent_t, 2> made{};
    for (cudaEvent_t& event : made) check(cudaEventCreate(&event), "cudaEventCreate");
    return made;
  }();
  queue(x, a, buffers, 1);
  check(cudaEventRecord(events[0], nullptr), "cudaEventRecord");
  queue(x, a, buffers, x.calls);
  check(cudaEventRecord(events[1], nullptr), "cudaEventRecord");
  check(cudaEventSynchronize(events[1]), x.plan.info().kernel.c_str());
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, events[0], events[1]), "cudaEventElapsedTime");
  return milliseconds / 1e3 / x.calls;
}

std::vector<float> result(const Contender& x, const Attention& a, const Buffers& buffers) {
  constexpr std::size_t kEvery =
      16;  // rows of all heads: to copy them all takes longer than to time
  const auto width = static_cast<std::size_t>(a.out.shape[2] * a.out.shape[3]);
  std::vector<std::uint16_t> host(kTokens / kEvery * width);
  check(cudaMemset(buffers.out.data(), 0xFF, kTokens * width * 2), "poison");
  queue(x, a, buffers, 1);
  check(cudaMemcpy2D(host.data(), width * 2, buffers.out.data(), kEvery * width * 2, width * 2,
                     kTokens / kEvery, cudaMemcpyDeviceToHost),
        x.plan.info().kernel.c_str());
  std::vector<float> values(host.size());
  for (std::size_t n = 0; n < host.size(); ++n) {
    const std::uint32_t bits = static_cast<std::uint32_t>(host[n]) << 16;
    std::memcpy(&values[n], &bits, sizeof(bits));
  }
  return values;
}

double difference(const std::vector<float>& got, const std::vector<float>& expected) {
  double most = 0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    const double off = std::abs(static_cast<double>(got[n]) - static_cast<double>(expected[n]));
    if (!(off <= most)) most = off == off ? off : HUGE_VAL;
  }
  return most;
}

}  // namespace onchip::tuning
