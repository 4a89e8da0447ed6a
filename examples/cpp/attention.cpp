// SPDX-License-Identifier: Apache-2.0
// Causal attention, forward and backward, on vectors; then the plan in words.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "onchip/attention.hpp"
#include "onchip/threads.hpp"

namespace {

constexpr std::int64_t kBatch = 1, kSeqlen = 1024, kHeads = 8, kHeadsKv = 2, kDim = 64;

std::vector<float> normal(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

/// A tensor over the vector's memory; the vector must outlive it.
onchip::TensorView view(std::vector<float>& values, std::initializer_list<std::int64_t> shape) {
  return onchip::make_tensor(values.data(), onchip::DType::float32, shape);
}

/// The workspace of a plan: 256-byte aligned, and no clearing needed.
class Workspace {
 public:
  explicit Workspace(const onchip::Plan& plan)
      : bytes_(plan.workspace_bytes()), memory_(bytes_ + 256), aligned_(memory_.data()) {
    std::size_t space = memory_.size();
    std::align(256, bytes_, aligned_, space);
  }
  [[nodiscard]] void* data() const { return aligned_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  void* aligned_;
};

void run() {
  constexpr std::int64_t kQuery = kBatch * kSeqlen * kHeads * kDim;
  constexpr std::int64_t kKey = kBatch * kSeqlen * kHeadsKv * kDim;
  std::vector<float> q = normal(kQuery, 1), k = normal(kKey, 2), v = normal(kKey, 3);
  std::vector<float> out(q.size()), lse(static_cast<std::size_t>(kBatch * kHeads * kSeqlen));

  onchip::Attention a;
  a.options.causal = true;
  a.q = view(q, {kBatch, kSeqlen, kHeads, kDim});
  a.k = view(k, {kBatch, kSeqlen, kHeadsKv, kDim});
  a.v = view(v, {kBatch, kSeqlen, kHeadsKv, kDim});
  a.out = view(out, {kBatch, kSeqlen, kHeads, kDim});
  a.lse = view(lse, {kBatch, kHeads, kSeqlen});
  const onchip::Plan forward = onchip::plan(a, onchip::Pass::forward);
  const Workspace forward_memory(forward);
  onchip::forward(forward, a, forward_memory.data(), forward_memory.size(), {});

  // The first query sees one key, so its result is that key's value: heads share KV heads by fours.
  std::printf("out[0,0,0,0] %.6f, v[0,0,0,0] %.6f\n", static_cast<double>(out[0]),
              static_cast<double>(v[0]));

  std::vector<float> dout(out.size(), 1.0F), dq(q.size()), dk(k.size()), dv(v.size());
  a.dout = view(dout, {kBatch, kSeqlen, kHeads, kDim});
  a.dq = view(dq, {kBatch, kSeqlen, kHeads, kDim});
  a.dk = view(dk, {kBatch, kSeqlen, kHeadsKv, kDim});
  a.dv = view(dv, {kBatch, kSeqlen, kHeadsKv, kDim});
  const onchip::Plan backward = onchip::plan(a, onchip::Pass::backward);
  const Workspace backward_memory(backward);
  onchip::backward(backward, a, backward_memory.data(), backward_memory.size(), {});

  // Weights of a row sum to 1, so with a gradient of ones dv sums to the elements of out.
  double sum = 0;
  for (const float value : dv) sum += static_cast<double>(value);
  std::printf("sum of dv %.1f, elements of out %zu\n\n", sum, out.size());

  std::printf("%s\n", forward.explain().c_str());
}

}  // namespace

int main() {
  try {
    std::printf("%s, %d threads\n", onchip::cpu_isa(), onchip::num_threads());
    run();
    return 0;
  } catch (const onchip::Error& error) {
    std::fprintf(stderr, "onchip: %s\n", error.what());
    return 1;
  }
}
