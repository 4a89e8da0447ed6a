// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstring>

#include "block.hpp"
#include "hopper.hpp"
#include "prims/mbarrier.cuh"

namespace onchip::cuda {

inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  emulator::barrier_expect(barrier, bytes);
}
inline void barrier_fence() {}
inline void async_fence() { emulator::fence_writes(); }

inline bool elect_one() {
  __syncwarp();  // every lane must call it
  return threadIdx.x % 32 == 0;
}

inline void tma_load(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, int x, int y,
                     int z, int w) {
  emulator::copy_box(to, &map, barrier, {x, y, z, w});
}
inline void tma_load(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, int x, int y,
                     int z, int w, int v) {
  emulator::copy_box(to, &map, barrier, {x, y, z, w, v});
}
inline void tma_prefetch(const CUtensorMap& /*map*/) {}

inline void store_zeros(std::uint32_t to) {
  emulator::note_write(to);
  std::memset(emulator::shared_memory(to, 16), 0, 16);
}

template <int kThreads>
void named_barrier_wait(int id) {
  emulator::named_barrier(static_cast<unsigned>(id), kThreads, true);
}
template <int kThreads>
void named_barrier_arrive(int id) {
  emulator::named_barrier(static_cast<unsigned>(id), kThreads, false);
}

template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

}  // namespace onchip::cuda
