// SPDX-License-Identifier: Apache-2.0
// Streams, graphs, threads and devices: work is queued where the caller says, and nothing waits.
#include <atomic>
#include <chrono>
#include <thread>

#include "device.hpp"

namespace {

using fixture::Problem;
using fixture::Rng;
using onchip::DType;
using onchip::Pass;

class GpuStreams : public device::Needs<::testing::Test> {};

/// Backward is in fixed order, so that bits can be compared.
std::unique_ptr<Problem> random_problem(std::uint64_t seed, bool packed, DType dtype) {
  Rng rng(seed);
  auto problem =
      fixture::random_problem({.dtype = dtype, .packed = packed, .poison = 0.0, .gpu = true}, rng);
  problem->attention.options.deterministic = true;
  return problem;
}

/// Both passes of a problem on one device.
struct Both {
  explicit Both(const onchip::Attention& attention)
      : forward(attention, Pass::forward), backward(attention, Pass::backward) {}
  void operator()(const onchip::Attention& attention, const device::Stream& stream) const {
    forward(attention, stream);
    backward(attention, stream);
  }
  device::Launch forward, backward;
};

/// Holds a stream until it is opened, or for 20 seconds.
class Gate {
 public:
  explicit Gate(const device::Stream& stream) {
    device::check(cudaLaunchHostFunc(stream.handle(), &Gate::wait, this), "cudaLaunchHostFunc");
  }
  void open() { open_ = true; }
  [[nodiscard]] bool lost_patience() const { return lost_patience_; }

 private:
  static void wait(void* gate) {
    auto* self = static_cast<Gate*>(gate);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!self->open_) {
      if (std::chrono::steady_clock::now() > end) {
        self->lost_patience_ = true;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::atomic<bool> open_ = false, lost_patience_ = false;
};

/// The inputs arrive on the stream after the calls have returned: were a call to wait for the
/// stream, the gate would lose patience; were it queued elsewhere, the results would be of zeros.
TEST_F(GpuStreams, CallsReturnWhileTheStreamIsBlocked) {
  for (const bool packed : {false, true}) {
    const auto problem = random_problem(3, packed, DType::bfloat16);
    device::run(*problem);
    const auto expected = device::bits(problem->attention);
    device::Mirror mirror(problem->attention);
    mirror.upload();
    const Both both(mirror.attention);
    mirror.clear_inputs();
    device::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const device::Stream stream;
    Gate gate(stream);
    mirror.queue_inputs(stream);
    both(mirror.attention, stream);
    EXPECT_EQ(cudaStreamQuery(stream.handle()), cudaErrorNotReady);
    EXPECT_FALSE(gate.lost_patience());
    gate.open();
    stream.synchronize();
    mirror.download();
    EXPECT_EQ(device::bits(problem->attention), expected);
  }
}

TEST_F(GpuStreams, GraphReplaysWithChangedInputs) {
  for (const bool packed : {false, true}) {
    Rng rng(11);
    const auto problem = random_problem(packed ? 8 : 4, packed, DType::float16);
    const onchip::Attention& a = problem->attention;
    const device::Mirror mirror(a);
    mirror.upload();
    const Both both(mirror.attention);
    const device::Stream stream;
    both(mirror.attention, stream);  // loads the kernels
    stream.synchronize();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    device::check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeGlobal), "begin");
    both(mirror.attention, stream);
    device::check(cudaStreamEndCapture(stream.handle(), &graph), "end");
    device::check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    for (int replay = 0; replay < 3; ++replay) {
      for (const auto& view : {a.q, a.k, a.v, a.dout}) fixture::fill_normal(view, rng);
      mirror.upload();
      device::check(cudaGraphLaunch(exec, stream.handle()), "launch");
      stream.synchronize();
      mirror.download();
      const auto replayed = device::bits(a);
      problem->expect_right(true, "replay");
      device::run(*problem);
      EXPECT_EQ(device::bits(a), replayed);
    }
    device::check(cudaGraphExecDestroy(exec), "destroy");
    device::check(cudaGraphDestroy(graph), "destroy");
  }
}

/// Threads with streams of their own, some of them on one plan and one device copy of the inputs.
TEST_F(GpuStreams, ThreadsAndStreamsAtOnce) {
  constexpr std::uint64_t kProblems = 6;
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<std::vector<std::vector<std::uint64_t>>> expected;
  for (std::uint64_t n = 0; n < kProblems; ++n) {
    problems.push_back(
        random_problem(20 + n, n % 2 == 1, n % 3 == 0 ? DType::float32 : DType::bfloat16));
    device::run(*problems.back());
    expected.push_back(device::bits(problems.back()->attention));
  }
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < kProblems; ++n) {
    threads.emplace_back([&, n] {
      for (int repeat = 0; repeat < 10; ++repeat) {
        device::run(*problems[n]);
        EXPECT_EQ(device::bits(problems[n]->attention), expected[n]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// One plan and one copy of the inputs; each thread has its own workspace, results and stream.
TEST_F(GpuStreams, OnePlanServesManyThreads) {
  const auto problem = random_problem(4, false, DType::bfloat16);
  const onchip::Attention& a = problem->attention;
  problem->run_with(device::call, Pass::forward);
  const auto expected = fixture::bits(a.out);
  const device::Mirror shared(a);
  shared.upload();
  const onchip::Plan plan = onchip::plan(shared.attention, Pass::forward);
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      const auto copy = random_problem(4, false, DType::bfloat16);  // the same strides
      const device::Mirror own(copy->attention);
      own.upload();
      const device::Memory workspace(plan.workspace_bytes());
      const device::Stream stream;
      onchip::Attention mine = shared.attention;
      mine.out.data = own.attention.out.data;
      mine.lse.data = own.attention.lse.data;
      for (int repeat = 0; repeat < 20; ++repeat) {
        onchip::forward(plan, mine, workspace.data(), plan.workspace_bytes(), stream.view());
      }
      stream.synchronize();
      own.download();
      EXPECT_EQ(fixture::bits(copy->attention.out), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GpuStreams, EveryDevice) {
  int count = 0;
  device::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count < 2) GTEST_SKIP() << "one device";
  const auto problem = random_problem(4, false, DType::bfloat16);
  device::run(*problem);
  const auto expected = device::bits(problem->attention);
  for (int index = 1; index < count; ++index) {
    device::check(cudaSetDevice(index), "cudaSetDevice");
    const device::Mirror mirror(problem->attention, index);
    mirror.upload();
    const Both both(mirror.attention);
    const device::Stream stream;
    device::check(cudaSetDevice(0), "cudaSetDevice");
    both(mirror.attention, stream);
    int current = -1;
    device::check(cudaGetDevice(&current), "cudaGetDevice");
    EXPECT_EQ(current, 0);
    stream.synchronize();
    mirror.download();
    EXPECT_EQ(device::bits(problem->attention), expected);
  }
}

}  // namespace
