// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "prims/mma.cuh"

namespace onchip::cuda {

struct NothingBeside {
  __device__ __forceinline__ void operator()(int /*product*/) const {}
};

/// c += A . B for kTiles x 16 rows, all columns of c and kSteps x 16 steps of depth, by one warp.
/// load_a(t, step) is a fragment of 16 rows, load_b(step, n) one of 16 columns: loaded kAhead
/// products ahead of its use, those of a whole step for A. beside(i) runs after product i of
/// kSteps x (columns / 16): arithmetic put there fills the time that the products take.
template <class Element, int kSteps, int kAhead = 1, int kTiles, int kHalves, class LoadA,
          class LoadB, class Beside = NothingBeside>
__device__ __forceinline__ void warp_product(LoadA load_a, LoadB load_b,
                                             float (&c)[kTiles][kHalves][4], Beside beside = {}) {
  constexpr int kColumns = kHalves / 2;
  constexpr int kProducts = kSteps * kColumns;
  constexpr int kStepsAhead = (kAhead + kColumns - 1) / kColumns;
  Fragment a[kStepsAhead + 1][kTiles];
  Fragment b[kAhead + 1];
#pragma unroll
  for (int step = 0; step < kStepsAhead && step < kSteps; ++step) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) a[step][t] = load_a(t, step);
  }
#pragma unroll
  for (int i = 0; i < kAhead && i < kProducts; ++i) b[i] = load_b(i / kColumns, i % kColumns);
  // Two loops: nvcc does not unroll one of 32 products.
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = step * kColumns + n;
      const int next = i + kAhead;
      if (next < kProducts) b[next % (kAhead + 1)] = load_b(next / kColumns, next % kColumns);
      const int next_step = step + kStepsAhead;
#pragma unroll
      for (int t = 0; n == 0 && next_step < kSteps && t < kTiles; ++t) {
        a[next_step % (kStepsAhead + 1)][t] = load_a(t, next_step);
      }
      const Fragment& columns = b[i % (kAhead + 1)];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const Fragment& rows = a[step % (kStepsAhead + 1)][t];
        mma<Element>(c[t][2 * n], rows, columns.x[0], columns.x[1]);
        mma<Element>(c[t][2 * n + 1], rows, columns.x[2], columns.x[3]);
      }
      beside(i);
    }
  }
}

}  // namespace onchip::cuda
