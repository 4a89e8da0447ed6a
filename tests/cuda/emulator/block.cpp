// SPDX-License-Identifier: Apache-2.0
#include "block.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "block_state.hpp"
#include "hopper.hpp"

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

// What the kernels declare, by its two names.
namespace onchip::cuda::sm80 {
alignas(1024) thread_local char shared[256 << 10];
}
namespace onchip::cuda::sm90 {
extern thread_local char dynamic[sizeof(sm80::shared)]
    __attribute__((alias("_ZN6onchip4cuda4sm806sharedE")));
}

namespace emulator {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr unsigned kManyPasses = 1 << 16;
constexpr std::uint32_t kSharedBase = 1024 + 128;  // a multiple of 128 bytes only, as on a GPU

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
  Wait waits = Wait::nothing;
  std::uint32_t waits_at = 0;  // which barrier
  unsigned passes = 0;         // barriers since it waited for something
};

struct Warp {
  std::uint32_t alive = 0, ready = 0, dozing = 0, met = 0;  // lanes
  const void* operation = nullptr;
  Lanes lanes = {};
  std::int64_t rank = 0;
  std::uint64_t dozes_since = 0;
};

struct Block {
  Thread threads[kMaxThreads];
  Warp warps[kMaxWarps];
  unsigned count = 0, current = 0, alive = 0, at_block = 0;
  Waiters block_waiters = {};
  std::vector<std::function<void()>> later;
  std::uint64_t dozes = 0;
  std::size_t shared_bytes = 0;
  double eagerness = 0;     // of copies
  double unrest = 0;        // of warps: chance to fall behind all others at an operation
  double drowsiness = 0;    // of lanes: chance to fall behind their warp at a barrier
  double alertness = 0;     // of those: chance to go on before they must
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
/// Makes the oldest copy of a thread, which may also be an arrival or the end of a group.
void make_copy(Thread& thread) {
  const Copy copy = thread.copies.front();
  thread.copies.pop_front();
  if (copy.bytes == 0) {
    if (!copy.last_of_group) barrier_arrive(copy.to);
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

void do_late_work() {
  const std::size_t n = below(static_cast<unsigned>(block.later.size()));
  const std::function<void()> work = std::move(block.later[n]);
  block.later.erase(block.later.begin() + static_cast<std::ptrdiff_t>(n));
  work();
}

/// Wakes the dozing lanes of a warp, in some blocks those that have dozed longest at last of all;
/// false where there are none.
bool wake_lanes() {
  Warp* chosen = nullptr;
  const unsigned warps = block.count / 32;
  const unsigned first = below(warps);
  for (unsigned n = 0; n < warps; ++n) {
    Warp& w = block.warps[(first + n) % warps];
    if (w.dozing == 0) continue;
    const bool later = chosen != nullptr && w.dozes_since > chosen->dozes_since;
    if (chosen == nullptr || (later && block.alertness == 0)) chosen = &w;
  }
  if (chosen == nullptr) return false;
  chosen->ready |= std::exchange(chosen->dozing, 0);
  return true;
}

/// Where no thread can go on: something that had time until now; false where there is nothing.
bool go_on_late() {
  if (chance(block.alertness) && wake_lanes()) return true;
  if (!block.later.empty()) {
    do_late_work();
    return true;
  }
  return wake_lanes() || make_late_copies();
}

std::string describe_wait(const Thread& thread) {
  switch (thread.waits) {
    case Wait::lanes: return "other lanes of its warp";
    case Wait::block: return "__syncthreads()";
    case Wait::barrier: return describe_barrier(thread.waits_at);
    case Wait::named_barrier: return describe_named_barrier(thread.waits_at);
    case Wait::dozing:
    case Wait::nothing: break;
  }
  return "nothing";
}

[[noreturn]] void report_deadlock() {
  for (unsigned n = 0; n < block.count; n += 32) {
    std::map<std::string, std::uint32_t> lanes;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const bool alive = (block.warps[n / 32].alive >> lane & 1U) != 0;
      if (alive) lanes[describe_wait(block.threads[n + lane])] |= 1U << lane;
    }
    for (const auto& [what, which] : lanes) {
      std::fprintf(stderr, "emulator: warp %u, lanes %08x: wait for %s\n", n / 32, which,
                   what.c_str());
    }
  }
  fail("a deadlock");
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
    if (!go_on_late()) report_deadlock();
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
void wait(Wait what, std::uint32_t at = 0) {
  Thread& thread = block.threads[block.current];
  thread.waits = what;
  if (what != Wait::dozing) thread.passes = 0;
  thread.waits_at = at;
  warp().ready &= ~lane_bit();
  go_on_with(next_thread());
  thread.waits = Wait::nothing;
}
void fall_behind() {
  warp().rank = --block.lowest;
  go_on_with(next_thread());
}

void release_block() {
  block.at_block = 0;
  release(block.block_waiters);
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
  thread.passes = 0;
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
  block.block_waiters = {};
  reset_barriers();
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
  constexpr double kDrowsiness[] = {0, 0.01, 0.1};
  block.drowsiness = kDrowsiness[below(3)];
  block.alertness = below(2) * 0.5;
  std::memset(onchip::cuda::sm80::shared, 0xFF, block.shared_bytes);
  block.current = below(block.count);
  threadIdx = {block.current, 0, 0};
  emulator_switch(&block.home, block.threads[block.current].stack_pointer);
  if (!block.later.empty()) fail("a block ends before a copy that it began");
  end_products();
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

bool is_early() { return chance(block.eagerness); }

void linger() {
  if (chance(0.25)) fall_behind();
}

void do_later(std::function<void()> work) {
  if (is_early()) {
    work();
  } else {
    block.later.push_back(std::move(work));
  }
}

unsigned warp_number() { return block.current / 32; }

std::uint32_t shared_address(const void* pointer) {
  return kSharedBase +
         static_cast<std::uint32_t>(static_cast<const char*>(pointer) - onchip::cuda::sm80::shared);
}

std::byte* shared_memory(std::uint32_t address, std::uint32_t bytes) {
  if (address % bytes != 0) fail("an unaligned access to shared memory");
  if (address < kSharedBase || address - kSharedBase + bytes > block.shared_bytes) {
    fail("an access outside of shared memory");
  }
  return reinterpret_cast<std::byte*>(onchip::cuda::sm80::shared) + (address - kSharedBase);
}

void release(Waiters& waiters) {
  for (unsigned w = 0; w < kMaxWarps; ++w) block.warps[w].ready |= std::exchange(waiters[w], 0);
}

void wait_among(Waiters& waiters, Wait what, std::uint32_t at) {
  waiters[block.current / 32] |= lane_bit();
  wait(what, at);
}

void come_to_barrier() {
  if (++block.threads[block.current].passes > kManyPasses) fail("a wait in a loop without an end");
  if (!chance(block.drowsiness)) return;
  if (warp().dozing == 0) warp().dozes_since = ++block.dozes;
  warp().dozing |= lane_bit();
  wait(Wait::dozing);
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
  wait(Wait::lanes);
  return nullptr;
}

void leave() {
  Warp& own = warp();
  own.ready |= own.met;
  own.met = 0;
  if (!chance(block.unrest)) return;
  Thread& other = block.threads[below(block.count)];
  if (!other.copies.empty() && is_early()) make_copy(other);
  if (!block.later.empty() && is_early()) do_late_work();
  if (chance(block.alertness)) wake_lanes();
  fall_behind();
}

void sync_block() {
  if (++block.at_block < block.alive) {
    wait_among(block.block_waiters, Wait::block);
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
  if (thread.copies.size() == 1 && is_early()) make_copy(thread);
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

void barrier_arrive_copies(std::uint32_t barrier) {
  Thread& thread = block.threads[block.current];
  thread.copies.push_back({.to = barrier});
  if (!is_early()) return;
  while (!thread.copies.empty()) make_copy(thread);
}

}  // namespace emulator
