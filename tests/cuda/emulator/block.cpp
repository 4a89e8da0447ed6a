// SPDX-License-Identifier: Apache-2.0
#include "block.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <span>
#include <vector>

// void emulator_switch(void** from, void* to): keeps this fiber's stack pointer in *from and goes
// on with the fiber whose stack pointer is `to`.
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");
extern "C" void emulator_switch(void** from, void* to);

namespace onchip::cuda::sm80 {
alignas(1024) thread_local char shared[256 << 10];  // what the kernels declare
}

namespace emulator {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxWarps = kMaxThreads / 32;

/// What an asynchronous copy does once it is made; with no bytes, an arrival at barrier `to`.
struct Copy {
  std::uint32_t to = 0;
  const void* from = nullptr;
  std::uint32_t bytes = 0;
  bool valid = false;
  bool last_of_group = false;
};

struct Thread {
  void* stack = nullptr;
  void* stack_pointer = nullptr;
  std::deque<Copy> copies;  // asked for, not made
};

struct Warp {
  std::uint32_t alive = 0, ready = 0;                   // lanes
  std::uint32_t met = 0, at_block = 0, at_barrier = 0;  // lanes that wait, and for what
  const void* operation = nullptr;
  Lanes lanes = {};
  std::int64_t rank = 0;
};

/// A barrier as it lies in shared memory.
struct Barrier {
  std::uint16_t expected, pending;
  std::uint32_t phase;
};
static_assert(sizeof(Barrier) == 8);

struct Block {
  Thread threads[kMaxThreads];
  Warp warps[kMaxWarps];
  unsigned count = 0, current = 0, alive = 0, at_block = 0;
  std::size_t shared_bytes = 0;
  double eagerness = 0;     // of copies
  double unrest = 0;        // of warps: chance to fall behind all others at an operation
  std::int64_t lowest = 0;  // rank of a warp
  const std::function<void()>* kernel = nullptr;
  void* home = nullptr;  // the stack pointer of `run`
  std::mt19937 random{[] {
    const char* seed = std::getenv("ONCHIP_EMULATOR_SEED");
    return seed == nullptr ? 1U : static_cast<unsigned>(std::strtoul(seed, nullptr, 10));
  }()};
};
thread_local Block block;

unsigned below(unsigned count) { return static_cast<unsigned>(block.random() % count); }
Warp& warp() { return block.warps[block.current / 32]; }
std::uint32_t lane_bit() { return 1U << block.current % 32; }
Barrier& barrier_at(std::uint32_t address) {
  return *reinterpret_cast<Barrier*>(onchip::cuda::sm80::shared +
                                     static_cast<std::int32_t>(address));
}

void arrive(Barrier& barrier) {
  if (barrier.pending == 0) fail("a barrier that nobody made");
  if (--barrier.pending > 0) return;
  barrier.pending = barrier.expected;
  ++barrier.phase;
  for (Warp& w : block.warps) {
    w.ready |= w.at_barrier;
    w.at_barrier = 0;
  }
}

/// Makes the oldest copy of a thread, which may also be an arrival or the end of a group.
void make_copy(Thread& thread) {
  const Copy copy = thread.copies.front();
  thread.copies.pop_front();
  if (copy.bytes == 0) {
    if (!copy.last_of_group) arrive(barrier_at(copy.to));
    return;
  }
  std::byte* to = shared_memory(copy.to, copy.bytes);
  if (copy.valid) {
    std::memcpy(to, copy.from, copy.bytes);
  } else {
    std::memset(to, 0, copy.bytes);
  }
}

/// Lets copies of some thread be made up to its next arrival; false where nobody waits to arrive.
bool make_late_copies() {
  const unsigned first = below(block.count);
  for (unsigned n = 0; n < block.count; ++n) {
    Thread& thread = block.threads[(first + n) % block.count];
    const auto arrival = [](const Copy& copy) { return copy.bytes == 0 && !copy.last_of_group; };
    const auto found = std::find_if(thread.copies.begin(), thread.copies.end(), arrival);
    if (found == thread.copies.end()) continue;
    for (auto left = found - thread.copies.begin() + 1; left > 0; --left) make_copy(thread);
    return true;
  }
  return false;
}

/// A thread of the first warp by rank that can go on. Ranks change seldom and at random, so that a
/// warp may be ahead of another by all that the kernel's barriers allow.
unsigned next_thread() {
  while (true) {
    const Warp* best = nullptr;
    for (const Warp& w : std::span(block.warps, block.count / 32)) {
      if (w.ready != 0 && (best == nullptr || w.rank > best->rank)) best = &w;
    }
    if (best != nullptr) {
      const auto first = static_cast<unsigned>(best - block.warps) * 32;
      const int lane = static_cast<int>(block.current % 32) + 1;
      return first +
             static_cast<unsigned>(std::countr_zero(std::rotr(best->ready, lane)) + lane) % 32;
    }
    if (!make_late_copies()) fail("a deadlock");
  }
}

void go_on_with(unsigned next) {
  const unsigned from = block.current;
  if (next == from) return;
  block.current = next;
  threadIdx.x = next;
  emulator_switch(&block.threads[from].stack_pointer, block.threads[next].stack_pointer);
}

/// This thread waits.
void wait() {
  warp().ready &= ~lane_bit();
  go_on_with(next_thread());
}

void release_block() {
  block.at_block = 0;
  for (Warp& w : block.warps) {
    w.ready |= w.at_block;
    w.at_block = 0;
  }
}

/// Where a fiber begins; it never returns.
void enter() {
  (*block.kernel)();
  Warp& own = warp();
  own.alive &= ~lane_bit();
  own.ready &= ~lane_bit();
  if (own.met != 0) fail("a lane leaves while its warp waits for it");
  --block.alive;
  if (block.alive == 0) {
    void* unused;
    emulator_switch(&unused, block.home);
  }
  if (block.at_block == block.alive) release_block();
  go_on_with(next_thread());
}

void prepare(unsigned number) {
  Thread& thread = block.threads[number];
  thread.copies.clear();
  if (thread.stack == nullptr) {
    thread.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (thread.stack == MAP_FAILED) fail("no memory");
  }
  // Six registers, where to go, and where `enter` would return to.
  void** top = reinterpret_cast<void**>(static_cast<std::byte*>(thread.stack) + kStackBytes) - 8;
  std::fill_n(top, 8, nullptr);
  top[6] = reinterpret_cast<void*>(&enter);
  thread.stack_pointer = top;
}

void run_block(unsigned number) {
  blockIdx = {number, 0, 0};
  block.alive = block.count;
  block.at_block = 0;
  for (Warp& w : block.warps) w = {.rank = static_cast<std::int64_t>(block.random())};
  block.lowest = 0;
  for (unsigned n = 0; n < block.count; ++n) {
    prepare(n);
    block.warps[n / 32].alive = block.warps[n / 32].ready |= 1U << n % 32;
  }
  constexpr double kEagerness[] = {0, 0, 0.5, 1};
  constexpr double kUnrest[] = {0, 0.002, 0.02, 0.2};
  block.eagerness = kEagerness[below(4)];
  block.unrest = kUnrest[below(4)];
  std::memset(onchip::cuda::sm80::shared, 0xFF, block.shared_bytes);
  block.current = below(block.count);
  threadIdx = {block.current, 0, 0};
  emulator_switch(&block.home, block.threads[block.current].stack_pointer);
}

}  // namespace

void run(unsigned blocks, unsigned threads, std::size_t shared_bytes,
         const std::function<void()>& kernel) {
  if (blocks == 0 || threads == 0 || threads > kMaxThreads || threads % 32 != 0 ||
      shared_bytes > sizeof(onchip::cuda::sm80::shared)) {
    fail("a launch that no device takes");
  }
  block.count = threads;
  block.shared_bytes = shared_bytes;
  block.kernel = &kernel;
  blockDim = {threads, 1, 1};
  gridDim = {blocks, 1, 1};
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), block.random);
  for (const unsigned number : order) run_block(number);
}

void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
  std::abort();
}

bool chance(double probability) {
  return probability > 0 && block.random() < probability * 4294967296.0;
}

std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const char*>(pointer) - onchip::cuda::sm80::shared);
}

std::byte* shared_memory(std::uint32_t address, std::uint32_t bytes) {
  if (address % bytes != 0) fail("an unaligned access to shared memory");
  if (address + bytes > block.shared_bytes) fail("an access outside of shared memory");
  return reinterpret_cast<std::byte*>(onchip::cuda::sm80::shared) + address;
}

const Lanes* meet(const void* operation, const void* in, void* out) {
  Warp& own = warp();
  if (own.met == 0) own.operation = operation;
  if (own.operation != operation) fail("lanes of a warp at different operations");
  if (own.alive != 0xffffffffU) fail("an operation of a warp that some lanes have left");
  own.lanes.in[block.current % 32] = in;
  own.lanes.out[block.current % 32] = out;
  own.met |= lane_bit();
  if (own.met == own.alive) return &own.lanes;
  wait();
  return nullptr;
}

void leave() {
  Warp& own = warp();
  own.ready |= own.met;
  own.met = 0;
  if (!chance(block.unrest)) return;
  Thread& other = block.threads[below(block.count)];
  if (!other.copies.empty() && chance(block.eagerness)) make_copy(other);
  own.rank = --block.lowest;
  go_on_with(next_thread());
}

void sync_block() {
  warp().at_block |= lane_bit();
  if (++block.at_block < block.alive) {
    wait();
    return;
  }
  release_block();
  go_on_with(next_thread());
}

void copy_later(std::uint32_t to, const void* from, std::uint32_t bytes, bool valid) {
  if (valid && reinterpret_cast<std::uintptr_t>(from) % bytes != 0) fail("an unaligned copy");
  std::memset(shared_memory(to, bytes), 0xFF, bytes);
  Thread& thread = block.threads[block.current];
  thread.copies.push_back({to, from, bytes, valid, false});
  if (thread.copies.size() == 1 && chance(block.eagerness)) make_copy(thread);
}

void commit_copies() { block.threads[block.current].copies.push_back({.last_of_group = true}); }

void wait_copies(unsigned pending) {
  Thread& thread = block.threads[block.current];
  const auto groups = std::count_if(thread.copies.begin(), thread.copies.end(),
                                    [](const Copy& copy) { return copy.last_of_group; });
  for (auto left = groups - pending; left > 0;) {
    left -= thread.copies.front().last_of_group ? 1 : 0;
    make_copy(thread);
  }
}

void barrier_init(std::uint32_t barrier, unsigned arrivals) {
  const auto count = static_cast<std::uint16_t>(arrivals);
  barrier_at(barrier) = {count, count, 0};
}

void barrier_arrive(std::uint32_t barrier) { arrive(barrier_at(barrier)); }

void barrier_arrive_copies(std::uint32_t barrier) {
  Thread& thread = block.threads[block.current];
  thread.copies.push_back({.to = barrier});
  if (!chance(block.eagerness)) return;
  while (!thread.copies.empty()) make_copy(thread);
}

void barrier_wait(std::uint32_t barrier, unsigned parity) {
  while (barrier_at(barrier).phase % 2 == parity) {
    warp().at_barrier |= lane_bit();
    wait();
  }
}

}  // namespace emulator
