// SPDX-License-Identifier: Apache-2.0
// Products for tiles that are partly masked and hold NaN or Inf: there 0 * NaN would carry poison
// from a key to rows that do not see it, so masked pairs are left out instead of multiplied by 0.
#if defined(ONCHIP_CPU_MASKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONCHIP_CPU_MASKED_INL_H_
#undef ONCHIP_CPU_MASKED_INL_H_
#else
#define ONCHIP_CPU_MASKED_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "cpu/gemm-inl.h"
#include "cpu/query_tile.hpp"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {

/// c[e][lane] = c[e][lane] * beta[lane] + sum over visible keys of a[j][e] * weights[j][lane]; the
/// panel's rows are those at `first` of the tile, keys count from j.lo. Null beta: 1.
template <class T>
void masked_gemm_lanes(const QueryTile& tile, std::int64_t first, KeyRange j, std::int64_t dim,
                       const T* a, std::int64_t a_row, const T* weights, T* c, const T* beta) {
  const std::int64_t width = panel_width<T>();
  for (std::int64_t lane = 0; lane < std::min(width, tile.rows - first); ++lane) {
    const KeyRange seen = intersect(tile.keys[first + lane], j);
    for (std::int64_t e = 0; e < dim; ++e) {
      T sum = 0;
      for (std::int64_t key = seen.lo; key < seen.hi; ++key) {
        sum += a[(key - j.lo) * a_row + e] * weights[(key - j.lo) * width + lane];
      }
      T& out = c[e * width + lane];
      out = (beta == nullptr ? out : out * beta[lane]) + sum;
    }
  }
}

/// c[j][column] += sum over rows that see j of weights[j][row] * b[row][column], for one panel of
/// columns; `weights` are panels of query rows, `panel_stride` apart.
template <class T>
void masked_gemm_rows(const QueryTile& tile, KeyRange j, const T* weights,
                      std::int64_t panel_stride, const T* b, T* c) {
  const std::int64_t width = panel_width<T>();
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const KeyRange seen = intersect(tile.keys[r], j);
    const T* weight = weights + r / width * panel_stride + r % width;
    for (std::int64_t key = seen.lo; key < seen.hi; ++key) {
      for (std::int64_t column = 0; column < width; ++column) {
        c[(key - j.lo) * width + column] += weight[(key - j.lo) * width] * b[r * width + column];
      }
    }
  }
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
