// SPDX-License-Identifier: Apache-2.0
// Barriers of a block that count arrivals, and those that have numbers.
#include <unordered_map>
#include <vector>

#include "block.hpp"
#include "block_state.hpp"

namespace emulator {
namespace {

constexpr unsigned kNamedBarriers = 16;
constexpr std::int32_t kNeverWaited = -2;
struct Barrier {
  std::size_t number;  // in the order of making
  unsigned expected, pending;
  std::int64_t bytes = 0;  // announced and not yet here
  std::int32_t phase = 0;
  Waiters waiters = {};
  std::vector<std::int32_t> waited;  // the phase that each thread waited for last
};
struct NamedBarrier {
  unsigned expected = 0, arrived = 0;
  Waiters waiters = {};
};

thread_local std::unordered_map<std::uint32_t, Barrier> barriers;
thread_local std::array<NamedBarrier, kNamedBarriers> named_barriers;

Barrier& barrier_at(std::uint32_t address) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) fail("a barrier that nobody made");
  return found->second;
}

void end_phase_if_complete(Barrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes > 0) return;
  barrier.pending = barrier.expected;
  ++barrier.phase;
  release(barrier.waiters);
}

void arrive(Barrier& barrier) {
  if (barrier.pending == 0) fail("more arrivals at a barrier than it was made for");
  --barrier.pending;
  end_phase_if_complete(barrier);
}

/// A thread waits for one phase after the other, or for the same one again. When the one behind it
/// has ended too, parity would mean that, and the thread might wait for ever.
void check_phase(Barrier& barrier, unsigned parity) {
  std::int32_t& waited = barrier.waited[threadIdx.x];
  if (waited == kNeverWaited) {
    waited = parity == 0 ? 0 : -1;
  } else if ((waited & 1) != static_cast<std::int32_t>(parity)) {
    ++waited;
  }
  if (barrier.phase > waited + 1) fail("a wait that comes after the next phase has ended too");
}

}  // namespace

void reset_barriers() {
  barriers.clear();
  named_barriers = {};
}

std::string describe_barrier(std::uint32_t address) {
  const Barrier& barrier = barrier_at(address);
  return "barrier " + std::to_string(barrier.number) + " (as made), phase " +
         std::to_string(barrier.phase) + ": " + std::to_string(barrier.pending) + " arrivals and " +
         std::to_string(barrier.bytes) + " bytes are missing";
}

std::string describe_named_barrier(std::uint32_t id) {
  const NamedBarrier& barrier = named_barriers[id];
  return "named barrier " + std::to_string(id) + ": " + std::to_string(barrier.arrived) + " of " +
         std::to_string(barrier.expected) + " threads are there";
}

void barrier_init(std::uint32_t barrier, unsigned arrivals) {
  if (barrier % 8 != 0) fail("a barrier off 8 bytes");
  barriers[barrier] = {.number = barriers.size(),
                       .expected = arrivals,
                       .pending = arrivals,
                       .waited = std::vector(blockDim.x, kNeverWaited)};
}

void barrier_arrive(std::uint32_t barrier) { arrive(barrier_at(barrier)); }

void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  barrier_at(barrier).bytes += bytes;
  arrive(barrier_at(barrier));
}

void barrier_complete(std::uint32_t barrier, std::uint32_t bytes) {
  Barrier& at = barrier_at(barrier);
  at.bytes -= bytes;
  if (at.bytes < 0) fail("more bytes at a barrier than it expects");
  end_phase_if_complete(at);
}

void barrier_wait(std::uint32_t barrier, unsigned parity) {
  come_to_barrier();
  Barrier& at = barrier_at(barrier);
  while (true) {
    check_phase(at, parity);
    if (at.phase % 2 != static_cast<std::int32_t>(parity)) return;
    wait_among(at.waiters, Wait::barrier, barrier);
  }
}

void named_barrier(unsigned id, unsigned threads, bool waits) {
  if (id >= kNamedBarriers) fail("a named barrier beyond the last");
  NamedBarrier& barrier = named_barriers[id];
  if (barrier.arrived > 0 && barrier.expected != threads) fail("a named barrier of two sizes");
  barrier.expected = threads;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    release(barrier.waiters);
  } else if (waits) {
    wait_among(barrier.waiters, Wait::named_barrier, id);
  }
}

}  // namespace emulator
