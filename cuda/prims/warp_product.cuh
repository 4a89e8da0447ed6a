// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "prims/mma.cuh"

namespace onchip::cuda {

/// c += A . B for kTiles x 16 rows, all columns of c and kSteps x 16 steps of depth, by one warp.
/// load_a(t, step) is a fragment of 16 rows, load_b(step, n) one of 16 columns. Each is loaded one
/// product ahead of its use.
template <class Element, int kSteps, int kTiles, int kHalves, class LoadA, class LoadB>
__device__ __forceinline__ void warp_product(LoadA load_a, LoadB load_b,
                                             float (&c)[kTiles][kHalves][4]) {
  constexpr int kColumns = kHalves / 2;
  Fragment a[2][kTiles];
  Fragment b[2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) a[0][t] = load_a(t, 0);
  b[0] = load_b(0, 0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int i = step * kColumns + n;
      if (i + 1 < kSteps * kColumns)
        b[(i + 1) % 2] = load_b((i + 1) / kColumns, (i + 1) % kColumns);
#pragma unroll
      for (int t = 0; n == 0 && step + 1 < kSteps && t < kTiles; ++t) {
        a[(step + 1) % 2][t] = load_a(t, step + 1);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        mma<Element>(c[t][2 * n], a[step % 2][t], b[i % 2].x[0], b[i % 2].x[1]);
        mma<Element>(c[t][2 * n + 1], a[step % 2][t], b[i % 2].x[2], b[i % 2].x[3]);
      }
    }
  }
}

}  // namespace onchip::cuda
