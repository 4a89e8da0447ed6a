// SPDX-License-Identifier: Apache-2.0
// The one matrix kernel: C[m][lane] = C * beta + sum_k A(m, k) * B[k][lane], a panel of `kPanel`
// lanes wide. Scalars of A are broadcast, so A may lie in memory as it likes; B and C rows are
// panel rows. Every product of the forward and backward pass is this shape.
//
// Compiled once per instruction set: no include guard but Highway's per-target toggle.
#if defined(ONCHIP_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONCHIP_CPU_GEMM_INL_H_
#undef ONCHIP_CPU_GEMM_INL_H_
#else
#define ONCHIP_CPU_GEMM_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Full vectors of the compute type, capped so that a panel has one width on every machine of ISA.
template <class T>
using Vec = hn::ScalableTag<T>;

/// Vectors of a panel, and rows of C that the registers hold beside them: 12 accumulators of the
/// 16 registers of SSE and AVX2, 24 of the 32 elsewhere.
inline constexpr int kPanelVectors = 2;
#if HWY_TARGET <= HWY_AVX3 || !HWY_ARCH_X86
inline constexpr int kRowsOfC = 12;
#else
inline constexpr int kRowsOfC = 6;
#endif

/// Query rows (or columns of a gradient) that one panel holds.
template <class T>
HWY_INLINE constexpr std::ptrdiff_t panel_width() {
  return kPanelVectors * static_cast<std::ptrdiff_t>(hn::MaxLanes(Vec<T>()));
}

/// How A(m, k) lies in memory: a[m * row + k * depth]; `segment` > 0 says that k runs through
/// segments of that many steps which lie `segment_stride` apart (A is itself in panels).
struct Walk {
  std::ptrdiff_t row = 0, depth = 0;
  std::ptrdiff_t segment = 0, segment_stride = 0;
};

/// What becomes of C: overwritten, added to, or scaled by a row of `beta` lanes first.
enum class Update { overwrite, add, scale };

template <int kRows, bool kUnitDepth, Update kUpdate, class T>
HWY_INLINE void gemm_rows(const T* HWY_RESTRICT a, const Walk& walk, const T* HWY_RESTRICT b,
                          T* HWY_RESTRICT c, std::ptrdiff_t depth, const T* HWY_RESTRICT beta) {
  const Vec<T> d;
  using V = hn::Vec<Vec<T>>;
  const std::ptrdiff_t lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
  const std::ptrdiff_t width = kPanelVectors * lanes;
  V sum[kRows][kPanelVectors];
  HWY_UNROLL(12)
  for (int m = 0; m < kRows; ++m) sum[m][0] = sum[m][1] = hn::Zero(d);

  const std::ptrdiff_t row = kUnitDepth ? walk.row : 1;
  const std::ptrdiff_t step = kUnitDepth ? 1 : walk.depth;
  const std::ptrdiff_t segment = walk.segment > 0 ? walk.segment : depth;
  for (std::ptrdiff_t start = 0; start < depth; start += segment, a += walk.segment_stride) {
    const std::ptrdiff_t count = segment < depth - start ? segment : depth - start;
    const T* HWY_RESTRICT ak = a;
    for (std::ptrdiff_t k = 0; k < count; ++k, ak += step, b += width) {
      const V b0 = hn::Load(d, b);
      const V b1 = hn::Load(d, b + lanes);
      HWY_UNROLL(12)
      for (int m = 0; m < kRows; ++m) {
        const V scalar = hn::Set(d, ak[m * row]);
        sum[m][0] = hn::MulAdd(scalar, b0, sum[m][0]);
        sum[m][1] = hn::MulAdd(scalar, b1, sum[m][1]);
      }
    }
  }

  HWY_UNROLL(12)
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kPanelVectors; ++n) {
      T* out = c + m * width + n * lanes;
      V value = sum[m][n];
      if constexpr (kUpdate == Update::add) value = hn::Add(value, hn::Load(d, out));
      if constexpr (kUpdate == Update::scale) {
        value = hn::MulAdd(hn::Load(d, out), hn::Load(d, beta + n * lanes), value);
      }
      hn::Store(value, d, out);
    }
  }
}

/// The last rows of C, fewer than kRowsOfC of them.
template <int kRows, bool kUnitDepth, Update kUpdate, class T>
HWY_INLINE void gemm_tail(std::ptrdiff_t rows, const T* a, const Walk& walk, const T* b, T* c,
                          std::ptrdiff_t depth, const T* beta) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      gemm_rows<kRows, kUnitDepth, kUpdate>(a, walk, b, c, depth, beta);
    } else {
      gemm_tail<kRows - 1, kUnitDepth, kUpdate>(rows, a, walk, b, c, depth, beta);
    }
  }
}

/// C (rows x panel) from A (rows x depth) and B (depth x panel). `kUnitDepth` says which step
/// through A is 1: along k (true) or from row to row (false).
template <bool kUnitDepth, Update kUpdate, class T>
HWY_NOINLINE void gemm(std::ptrdiff_t rows, std::ptrdiff_t depth, const T* a, const Walk& walk,
                       const T* b, T* c, const T* beta = nullptr) {
  const std::ptrdiff_t row = kUnitDepth ? walk.row : 1;
  std::ptrdiff_t m = 0;
  for (; m + kRowsOfC <= rows; m += kRowsOfC) {
    gemm_rows<kRowsOfC, kUnitDepth, kUpdate>(a + m * row, walk, b, c + m * panel_width<T>(), depth,
                                             beta);
  }
  gemm_tail<kRowsOfC - 1, kUnitDepth, kUpdate>(rows - m, a + m * row, walk, b,
                                               c + m * panel_width<T>(), depth, beta);
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
