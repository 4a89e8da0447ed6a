// SPDX-License-Identifier: Apache-2.0
// What the first block of a Hopper forward launch does when: prints the marks of one launch as
// JSON, which benchmarks/timeline.py draws. docs/hopper.md says how to read it.
//
//   onchip_timeline <head dimension: 64, 128, 256> <sequence length> <causal: 0, 1>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/kernel.hpp"
#include "onchip/attention.hpp"
#include "sm90/fwd_spans.hpp"
#include "sm90/fwd_timeline.hpp"
#include "tuning.hpp"

namespace {

using namespace onchip::tuning;
using onchip::cuda::Kernel;
using onchip::cuda::sm90::kSpanNames;
using onchip::cuda::sm90::kTimelineMarks;
using onchip::cuda::sm90::kTimelineRows;
using onchip::cuda::sm90::Mark;
using onchip::cuda::sm90::timeline_symbols;

constexpr int kCalls = 20;  // of a sample

const Kernel& kernel_named(const std::string& name) {
  for (const Kernel& kernel : onchip::cuda::kernels()) {
    if (name == kernel.name) return kernel;
  }
  throw std::runtime_error("this build has no kernel " + name);
}

/// The marks of one launch, after others: of all instances' marks, those that it wrote.
std::vector<Mark> marks_of_launch(const Contender& x, const onchip::Attention& a,
                                  const Buffers& buffers) {
  std::vector<Mark> marks(kTimelineRows * kTimelineMarks);
  const std::size_t bytes = marks.size() * sizeof(Mark);
  std::vector<void*> places;
  for (const void* symbol : timeline_symbols()) {
    check(cudaGetSymbolAddress(&places.emplace_back(), symbol), "cudaGetSymbolAddress");
    check(cudaMemset(places.back(), 0, bytes), "cudaMemset");
  }
  queue(x, a, buffers, 1);
  for (const void* place : places) {
    check(cudaMemcpy(marks.data(), place, bytes, cudaMemcpyDeviceToHost), x.kernel->name);
    if (marks.front().clock != 0) return marks;
  }
  throw std::runtime_error(std::string(x.kernel->name) + ": wrote no marks");
}

void print_row(const std::string& name, const Mark* marks, std::uint64_t start) {
  std::printf("{\"name\": \"%s\", \"marks\": [", name.c_str());
  // The last one is written over where there are more.
  for (int n = 0; n < kTimelineMarks - 1 && marks[n].clock != 0; ++n) {
    std::printf("%s[%llu, %llu]", n == 0 ? "" : ", ",
                static_cast<unsigned long long>(marks[n].clock - start),
                static_cast<unsigned long long>(marks[n].span));
  }
  std::printf("]}");
}

void print(const Cell& cell, const Contender& x, double seconds, const std::vector<Mark>& marks) {
  std::printf(
      "{\"dim\": %lld, \"seqlen\": %lld, \"causal\": %s, \"kernel\": \"%s\", \"tile_q\": %d, "
      "\"tile_k\": %d, \"error\": %g, \"seconds\": %.7g, \"seconds_with_marks\": %.7g,\n\"spans\": "
      "[",
      static_cast<long long>(cell.dims.q), static_cast<long long>(cell.length),
      cell.causal ? "true" : "false", x.kernel->name, x.kernel->tile_q, x.kernel->tile_k, x.error,
      seconds, x.samples.front());
  for (std::size_t n = 0; n < kSpanNames.size(); ++n)
    std::printf("%s\"%s\"", n == 0 ? "" : ", ", kSpanNames[n]);
  std::printf("],\n\"rows\": [");
  const int groups = x.kernel->threads / 128 - 1;
  std::uint64_t start = UINT64_MAX;
  for (int row = 0; row < groups + 2; ++row)
    start = std::min(start, marks[static_cast<std::size_t>(row * kTimelineMarks)].clock);
  for (int row = 0; row < groups + 2; ++row) {
    const std::string name = row < groups    ? "warpgroup " + std::to_string(row)
                             : row == groups ? "copies"
                                             : "schedule";
    std::printf("%s\n", row == 0 ? "" : ",");
    print_row(name, marks.data() + static_cast<std::size_t>(row) * kTimelineMarks, start);
  }
  std::printf("]}\n");
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 4) throw std::runtime_error("<head dimension> <sequence length> <causal>");
  const std::int64_t dim = std::atoll(arguments[1]);
  const Cell cell{{dim, dim}, std::atoi(arguments[3]) != 0, std::atoll(arguments[2])};
  const std::string name = "sm90_fwd_bfloat16_d" + std::to_string(dim);
  const Kernel& timed = kernel_named(name + "_timeline");
  if (cell.length < 1 || cell.length > kTokens) throw std::runtime_error("no such length");
  const Buffers buffers;
  const onchip::Attention a = problem_of(cell, buffers);
  const onchip::Plan chosen = onchip::plan(a, onchip::Pass::forward);
  const Kernel& plain = kernel_named(name);
  Contender without{&plain, plan_with(chosen, plain), kCalls};
  Contender with{&timed, plan_with(chosen, timed), kCalls};
  with.error = difference(result(with, a, buffers), result(without, a, buffers));
  with.samples.push_back(sample(with, a, buffers));
  const double seconds = sample(without, a, buffers);
  print(cell, with, seconds, marks_of_launch(with, a, buffers));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "onchip_timeline: %s\n", error.what());
  return 1;
}
