// SPDX-License-Identifier: Apache-2.0
// Tile copies by the tensor memory accelerator (PTX cp.async.bulk.tensor, sm_90), and what its
// barriers and the register pool need beside prims/mbarrier.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "prims/mbarrier.cuh"

namespace onchip::cuda {

/// One arrival, and `bytes` more to come before the phase ends.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile(
      "{.reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;}" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

/// Makes initialised barriers visible to the copy engine; before a __syncthreads().
__device__ __forceinline__ void barrier_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Orders plain writes to shared memory before what wgmma and the copy engine do.
__device__ __forceinline__ void async_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// True in one lane of a warp, all of whose lanes call this (PTX elect.sync): ptxas knows that it
/// is one, and that copies need no loop over lanes.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t one = 0;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n@one mov.u32 %0, 1;\n}"
               : "+r"(one));
  return one != 0;
}

/// Starts the copy of a box of four dimensions, or five; what lies outside of the tensor is 0.
__device__ __forceinline__ void tma_load(std::uint32_t to, const CUtensorMap& map,
                                         std::uint32_t barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
__device__ __forceinline__ void tma_load(std::uint32_t to, const CUtensorMap& map,
                                         std::uint32_t barrier, int x, int y, int z, int w, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
      : "memory");
}

__device__ __forceinline__ void tma_prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Zeros 16 bytes of shared memory; async_fence() before a product reads them.
__device__ __forceinline__ void store_zeros(std::uint32_t to) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

/// Barriers by number, of kThreads threads; 0 is that of __syncthreads().
template <int kThreads>
__device__ __forceinline__ void named_barrier_wait(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace onchip::cuda
