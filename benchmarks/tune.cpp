// SPDX-License-Identifier: Apache-2.0
// Times the Hopper forward kernels of this build against each other, candidates
// (cuda/candidates.cmake) beside those of the planner: one line of JSON for each kernel of each
// cell. `onchip tune` runs it.
//
//   onchip_tune [<rounds>]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/kernel.hpp"
#include "host/gpu_plan.hpp"
#include "host/hopper_plan.hpp"
#include "host/plan_impl.hpp"
#include "onchip/attention.hpp"

namespace {

using onchip::DType;
using onchip::cuda::Kernel;

// The cells of `onchip bench` on a GPU: as many tokens and elements of Q in each.
constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kWidth = 2048;
constexpr std::array<std::int64_t, 6> kLengths{512, 1024, 2048, 4096, 8192, 16384};
constexpr double kSampleSeconds = 0.01;

struct Dims {
  std::int64_t q, v;
};
constexpr std::array kDims{Dims{64, 64},   Dims{96, 96},   Dims{128, 128},
                           Dims{192, 128}, Dims{192, 192}, Dims{256, 256}};

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

class Memory {
 public:
  explicit Memory(std::size_t bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  ~Memory() { static_cast<void>(cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

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

struct Buffers {
  Memory q{kTokens * kWidth * 2}, k{kTokens * kWidth * 2}, v{kTokens * kWidth * 2};
  Memory out{kTokens * kWidth * 2}, workspace{std::size_t{64} << 20};
  Buffers() {
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
  }
};

struct Cell {
  Dims dims;
  bool causal;
  std::int64_t length;
};

onchip::Attention problem_of(const Cell& cell, const Buffers& buffers) {
  const std::int64_t heads = kWidth / cell.dims.q;
  const auto view = [&](const Memory& memory, std::int64_t dim) {
    return onchip::make_tensor(memory.data(), DType::bfloat16,
                               {kTokens / cell.length, cell.length, heads, dim},
                               {onchip::DeviceType::cuda, 0});
  };
  onchip::Attention a;
  a.options.causal = cell.causal;
  a.q = view(buffers.q, cell.dims.q);
  a.k = view(buffers.k, cell.dims.q);
  a.v = view(buffers.v, cell.dims.v);
  a.out = view(buffers.out, cell.dims.v);
  return a;
}

/// The lean kernels of these head dimensions: the planner's "sm90_fwd_bfloat16_d64" and those with
/// a suffix.
std::vector<const Kernel*> kernels_for(const Dims& dims) {
  std::string prefix = "sm90_fwd_bfloat16_d" + std::to_string(dims.q);
  if (dims.v != dims.q) prefix += "_" + std::to_string(dims.v);
  std::vector<const Kernel*> found;
  for (const Kernel& kernel : onchip::cuda::kernels()) {
    const std::string name = kernel.name;
    if (!name.starts_with(prefix) || name.ends_with("_full")) continue;
    const std::string suffix = name.substr(prefix.size());
    // "d192_128" is no "d192" with a suffix.
    if (!suffix.empty() && (suffix[0] != '_' || (suffix[1] >= '0' && suffix[1] <= '9'))) continue;
    found.push_back(&kernel);
  }
  return found;
}

/// The planner's plan with another kernel in it.
onchip::Plan plan_with(const onchip::Plan& plan, const Kernel& kernel) {
  onchip::detail::PlanImpl impl = plan.impl();
  impl.info.kernel = kernel.name;
  impl.info.tile_q = kernel.tile_q;
  impl.info.tile_k = kernel.tile_k;
  impl.info.warps = kernel.threads / 32;
  impl.info.on_chip_bytes = kernel.shared_bytes;
  const std::int64_t tiles = onchip::host::hopper_blocks(impl.problem, kernel.tile_q);
  impl.info.grid = std::min<std::int64_t>(tiles, impl.info.device.units);
  const bool counts_tiles = onchip::host::hopper_counts_tiles(impl.problem, impl.info);
  impl.info.workspace_bytes =
      static_cast<std::size_t>(onchip::host::gpu_workspace(impl.problem, 1, counts_tiles).bytes);
  return onchip::Plan(std::make_shared<const onchip::detail::PlanImpl>(impl));
}

/// One kernel in one cell.
struct Contender {
  const Kernel* kernel;
  onchip::Plan plan;
  int calls = 1;  // of a sample
  double error = 0;
  std::vector<double> samples = {};
};

void queue(const Contender& x, const onchip::Attention& a, const Buffers& buffers, int calls) {
  for (int n = 0; n < calls; ++n) {
    onchip::forward(x.plan, a, buffers.workspace.data(), x.plan.workspace_bytes(), {nullptr});
  }
}

/// Seconds of one call. A first one is not timed: the host queues the others under it.
double sample(const Contender& x, const onchip::Attention& a, const Buffers& buffers) {
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

std::vector<float> result(const Contender& x, const onchip::Attention& a, const Buffers& buffers) {
  std::vector<std::uint16_t> host(kTokens * static_cast<std::size_t>(a.q.shape[2] * a.v.shape[3]));
  check(cudaMemset(buffers.out.data(), 0xFF, host.size() * 2), "poison");
  queue(x, a, buffers, 1);
  check(cudaMemcpy(host.data(), buffers.out.data(), host.size() * 2, cudaMemcpyDeviceToHost),
        x.plan.info().kernel.c_str());
  std::vector<float> values(host.size());
  for (std::size_t n = 0; n < host.size(); ++n) {
    const std::uint32_t bits = static_cast<std::uint32_t>(host[n]) << 16;
    std::memcpy(&values[n], &bits, sizeof(bits));
  }
  return values;
}

/// The greatest difference; infinite where one is NaN.
double difference(const std::vector<float>& got, const std::vector<float>& expected) {
  double most = 0;
  for (std::size_t n = 0; n < got.size(); ++n) {
    const double off = std::abs(static_cast<double>(got[n]) - static_cast<double>(expected[n]));
    if (!(off <= most)) most = off == off ? off : HUGE_VAL;
  }
  return most;
}

void print(const Cell& cell, const Contender& x, const onchip::Plan& chosen) {
  std::printf(
      "{\"dim\": %lld, \"dim_v\": %lld, \"causal\": %s, \"seqlen\": %lld, \"kernel\": \"%s\", "
      "\"planned\": %s, \"tile_q\": %d, \"tile_k\": %d, \"stages\": %d, \"warps\": %d, "
      "\"error\": %g, \"seconds\": [",
      static_cast<long long>(cell.dims.q), static_cast<long long>(cell.dims.v),
      cell.causal ? "true" : "false", static_cast<long long>(cell.length), x.kernel->name,
      chosen.info().kernel == x.kernel->name ? "true" : "false", x.kernel->tile_q, x.kernel->tile_k,
      x.kernel->stages, x.kernel->threads / 32, x.error);
  for (std::size_t n = 0; n < x.samples.size(); ++n)
    std::printf("%s%.7g", n == 0 ? "" : ", ", x.samples[n]);
  std::printf("]}\n");
  std::fflush(stdout);
}

void measure(const Cell& cell, const Buffers& buffers, int rounds) {
  const onchip::Attention a = problem_of(cell, buffers);
  const onchip::Plan chosen = onchip::plan(a, onchip::Pass::forward);
  std::vector<Contender> contenders;
  for (const Kernel* kernel : kernels_for(cell.dims))
    contenders.push_back({kernel, plan_with(chosen, *kernel)});
  if (contenders.empty()) return;
  const std::vector<float> expected = result({nullptr, chosen}, a, buffers);
  for (Contender& x : contenders) {
    x.error = difference(result(x, a, buffers), expected);
    x.calls = std::clamp(static_cast<int>(kSampleSeconds / sample(x, a, buffers)), 1, 200);
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t n = 0; n < contenders.size(); ++n) {
      Contender& x = contenders[(n + static_cast<std::size_t>(round)) % contenders.size()];
      x.samples.push_back(sample(x, a, buffers));
    }
  }
  for (const Contender& x : contenders) print(cell, x, chosen);
}

}  // namespace

int main(int count, char** arguments) try {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 7;
  const Buffers buffers;
  for (const Dims& dims : kDims) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t length : kLengths) measure({dims, causal, length}, buffers, rounds);
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "onchip_tune: %s\n", error.what());
  return 1;
}
