// SPDX-License-Identifier: Apache-2.0
// One block of a kernel at a time, a fiber for each of its threads, on one thread of the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct EmulatedIndex {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

/// Runs a kernel's blocks one after another, in random order.
void run(unsigned blocks, unsigned threads, std::size_t shared_bytes,
         const std::function<void()>& kernel);

/// Stops the program: what the kernel does is wrong on every device.
[[noreturn]] void fail(const char* what);

bool chance(double probability);

/// Whether something asynchronous is done at once: by chance, a different one for each block.
bool is_early();

/// Lets this lane's warp fall behind all others, by chance: where being late shows faults.
void linger();

/// Work that hardware does by itself some time later, in any order; at the latest when no thread
/// can go on without it.
void do_later(std::function<void()> work);

/// Number of this thread's warp.
unsigned warp_number();

/// The shared memory at an address, of which `bytes` are used; checks size and alignment.
std::byte* shared_memory(std::uint32_t address, std::uint32_t bytes);
std::uint32_t shared_address(const void* pointer);

/// What the 32 lanes of a warp bring to an operation that they do together, and take from it.
struct Lanes {
  const void* in[32];
  void* out[32];
};

/// Waits for the other lanes of the warp. Exactly one lane is given all of them, the last to come,
/// and calls `leave` when it has done the work. `operation` must be the same for all.
const Lanes* meet(const void* operation, const void* in, void* out);
void leave();

/// One operation of the whole warp: work(in, out) sees pointers to every lane's In and Out.
template <class Out, class In, class Work>
Out together(const In& in, Work work) {
  static constexpr char kOperation = 0;
  Out out;
  if (const Lanes* lanes = meet(&kOperation, &in, &out)) {
    work(reinterpret_cast<const In* const*>(lanes->in), reinterpret_cast<Out* const*>(lanes->out));
    leave();
  }
  return out;
}

/// __syncthreads().
void sync_block();

/// Asynchronous copies. Each is made as late as its thread's waits allow, or earlier, by chance;
/// until then its destination is full of NaN.
void copy_later(std::uint32_t to, const void* from, std::uint32_t bytes, bool valid);
void commit_copies();
void wait_copies(unsigned pending);

/// Barriers that count arrivals, and bytes of which `barrier_expect` announces how many (mbarrier).
void barrier_init(std::uint32_t barrier, unsigned arrivals);
void barrier_arrive(std::uint32_t barrier);
void barrier_arrive_copies(std::uint32_t barrier);
void barrier_expect(std::uint32_t barrier, std::uint32_t bytes);
void barrier_complete(std::uint32_t barrier, std::uint32_t bytes);
void barrier_wait(std::uint32_t barrier, unsigned parity);

/// Barriers by number, for `threads` threads: to arrive, and wait for the others or not (bar).
void named_barrier(unsigned id, unsigned threads, bool waits);

}  // namespace emulator
