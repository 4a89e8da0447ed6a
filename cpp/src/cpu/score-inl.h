// SPDX-License-Identifier: Apache-2.0
// Scores of one panel, S^T[j][row]: K.Q^T, then the score options and the mask. Lanes are query
// rows, so every per-row quantity (lo, hi, slope, m, l, lse) is one vector.
#if defined(ONCHIP_CPU_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONCHIP_CPU_SCORE_INL_H_
#undef ONCHIP_CPU_SCORE_INL_H_
#else
#define ONCHIP_CPU_SCORE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "cpu/convert-inl.h"
#include "cpu/gemm-inl.h"
#include "cpu/half.hpp"
#include "cpu/philox.hpp"
#include "cpu/query_tile.hpp"
#include "host/cpu_plan.hpp"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onchip::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

/// One launch as the kernels see it.
template <class T>
struct Launch {
  const host::Problem& problem;
  const host::Operands& operands;
  const host::CpuPlan& plan;
  std::int64_t width = panel_width<T>();
  std::uint32_t dropout_threshold = 0;  // lanes below are dropped
  T kept_scale = 1;                     // 1 / (1 - threshold / 65536)

  Launch(const host::Problem& p, const host::Operands& o, const host::CpuPlan& c)
      : problem(p), operands(o), plan(c), dropout_threshold(host::dropout_threshold(p.dropout_p)) {
    kept_scale = static_cast<T>(65536.0 / (65536.0 - dropout_threshold));
  }
  /// Any option that touches scores one by one; without them a score is one product.
  [[nodiscard]] bool full() const {
    return problem.softcap > 0 || problem.bias_dtype != DType::none || problem.has_alibi ||
           problem.dropout_p > 0;
  }
};

/// e^x for x <= 0, to about 2 ulp: x log2(e) = n + r, |r| <= 1/2, a degree-5 minimax polynomial for
/// 2^r. Below 2^-126 the result is 0; NaN stays NaN. The product is fused with what follows it:
/// that of a score before its distance from the maximum is taken would be rounded at the score's
/// size.
template <class D>
HWY_INLINE hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
  } else {
    const hn::RebindToUnsigned<D> bits;
    // Adding 1.5 * 2^23 rounds to an integer in the low bits; 127 more makes it an exponent.
    const auto magic = hn::Set(d, 12582912.0F + 127.0F);
    const auto log2e = hn::Set(d, std::numbers::log2e_v<float>);
    const auto least = hn::Set(d, -126.0F * std::numbers::ln2_v<float>);
    const auto clamped = hn::Max(least, x);  // x86: the second operand wins where it is NaN
    const auto shifted = hn::MulAdd(clamped, log2e, magic);
    const auto r = hn::MulSub(clamped, log2e, hn::Sub(shifted, magic));
    auto y = hn::MulAdd(hn::Set(d, 1.32647273e-3F), r, hn::Set(d, 9.67151299e-3F));
    y = hn::MulAdd(y, r, hn::Set(d, 5.55073358e-2F));
    y = hn::MulAdd(y, r, hn::Set(d, 2.40222424e-1F));
    y = hn::MulAdd(y, r, hn::Set(d, 6.93147004e-1F));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0F));
    const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(bits, shifted)));
    return hn::IfThenZeroElse(hn::Lt(x, least), hn::Mul(y, power));
  }
}

/// Packs rows [j.lo, j.hi) of K or V of a sequence: to[j - j.lo][tile_row].
template <class T>
void pack_keys(const Launch<T>& launch, const void* base, const host::Strides& strides,
               const Sequence& s, std::int64_t kv_head, KeyRange j, std::int64_t dim, T* to) {
  const host::Problem& p = launch.problem;
  for (std::int64_t row = j.lo; row < j.hi; ++row, to += host::tile_row<T>(dim)) {
    std::int64_t offset;
    if (p.paged) {
      const std::int64_t entry =
          s.batch * p.block_table_batch + row / p.page_size * p.block_table_page;
      offset =
          offset_of(strides, launch.operands.block_table[entry], 0, row % p.page_size, kv_head);
    } else {
      offset = offset_of(strides, s.batch, s.k_start, row, kv_head);
    }
    load_row(p.dtype, base, offset, dim, to);
  }
}

/// Packs query-side rows into panels [rows / W][dim][W], times `scale`. Rows that `skip` and lanes
/// past the last row become 0, so that poison in them reaches nothing.
template <class T>
void pack_queries(const Launch<T>& launch, const void* base, const host::Strides& strides,
                  const QueryTile& tile, std::int64_t dim, T scale, T* row, T* to) {
  const std::int64_t width = launch.width;
  for (std::int64_t first = 0; first < tile.rows; first += width, to += width * dim) {
    for (std::int64_t lane = 0; lane < width; ++lane) {
      const std::int64_t r = first + lane;
      if (r >= tile.rows || tile.keys[r].empty()) {
        for (std::int64_t e = 0; e < dim; ++e) to[e * width + lane] = 0;
        continue;
      }
      const Sequence& s = tile.sequence;
      load_row(launch.problem.dtype, base,
               offset_of(strides, s.batch, s.q_start, tile.position[r], tile.head[r]), dim, row);
      for (std::int64_t e = 0; e < dim; ++e) to[e * width + lane] = row[e] * scale;
    }
  }
}

/// Whether `count` packed rows of K or V hold only finite numbers.
template <class T>
bool all_finite(const T* rows, std::int64_t count, std::int64_t dim, std::int64_t stride) {
  const Vec<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);  // x * 0 is NaN for NaN and Inf
  T rest = 0;
  for (std::int64_t r = 0; r < count; ++r, rows += stride) {
    std::int64_t e = 0;
    for (; e + lanes <= dim; e += lanes) sum = hn::MulAdd(hn::LoadU(d, rows + e), hn::Zero(d), sum);
    for (; e < dim; ++e) rest += rows[e] * T{0};
  }
  return hn::AllTrue(d, hn::Eq(sum, hn::Zero(d))) && rest == T{0};
}

/// bias[b, h, i, j] for the rows of a panel: to[j - j.lo][lane].
template <class T>
void load_bias(const Launch<T>& launch, const QueryTile& tile, std::int64_t first, KeyRange j,
               T* to) {
  const host::Problem& p = launch.problem;
  for (std::int64_t lane = 0; lane < launch.width; ++lane) {
    const std::int64_t r = std::min(first + lane, tile.rows - 1);
    const std::int64_t row = tile.sequence.batch * p.bias.batch + tile.head[r] * p.bias.head +
                             tile.position[r] * p.bias.row;
    for (std::int64_t key = j.lo; key < j.hi; ++key) {
      to[(key - j.lo) * launch.width + lane] =
          load_element<T>(p.bias_dtype, launch.operands.bias, row + key * p.bias.col);
    }
  }
}

/// 1 where dropout keeps the weight of (row, key), else 0: to[j - j.lo][lane].
template <class T>
void load_keep(const Launch<T>& launch, const QueryTile& tile, std::int64_t first, KeyRange j,
               T* to) {
  const host::Problem& p = launch.problem;
  for (std::int64_t lane = 0; lane < launch.width; ++lane) {
    const std::int64_t r = std::min(first + lane, tile.rows - 1);
    const std::int64_t batch_head = tile.sequence.batch * p.heads_q + tile.head[r];
    PhiloxWords words{};
    for (std::int64_t key = j.lo; key < j.hi; ++key) {
      if (key == j.lo || key % 8 == 0) {
        words = dropout_words(key, tile.position[r], batch_head, launch.operands.seed,
                              launch.operands.offset);
      }
      const bool kept = dropout_lane(words, key) >= launch.dropout_threshold;
      to[(key - j.lo) * launch.width + lane] = kept ? T{1} : T{0};
    }
  }
}

/// Softcap, bias and ALiBi (contract, rules 2 and 3) in place. Where `slope` is given it receives
/// d softcap(s) / ds.
template <class T>
void apply_options(const Launch<T>& launch, const QueryTile& tile, std::int64_t first, KeyRange j,
                   const T* bias, T* slope, T* scores) {
  const Vec<T> d;
  const host::Problem& p = launch.problem;
  const Sequence& s = tile.sequence;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto cap = hn::Set(d, static_cast<T>(p.softcap));
  const auto inverse_cap = hn::Set(d, static_cast<T>(p.softcap > 0 ? 1.0 / p.softcap : 0.0));
  alignas(64) T alibi[host::kCpuMaxPanelBytes / sizeof(T)] = {};
  alignas(64) T diagonal[host::kCpuMaxPanelBytes / sizeof(T)] = {};
  for (std::int64_t lane = 0; p.has_alibi && lane < launch.width; ++lane) {
    const std::int64_t r = std::min(first + lane, tile.rows - 1);
    alibi[lane] = load_element<T>(p.stats_dtype, launch.operands.alibi_slopes,
                                  s.batch * p.alibi_batch + tile.head[r] * p.alibi_head);
    diagonal[lane] = static_cast<T>(tile.position[r] + s.k_len - s.q_len - j.lo);
  }
  for (std::int64_t row = 0; row < j.hi - j.lo; ++row) {
    for (std::int64_t lane = 0; lane < launch.width; lane += lanes) {
      const std::int64_t at = row * launch.width + lane;
      auto x = hn::Load(d, scores + at);
      if (p.softcap > 0) {
        const auto argument = hn::Mul(x, inverse_cap);
        const auto t = hn::IfThenElse(hn::IsNaN(argument), argument, hn::Tanh(d, argument));
        x = hn::Mul(t, cap);
        if (slope != nullptr) hn::Store(hn::NegMulAdd(t, t, hn::Set(d, T{1})), d, slope + at);
      }
      if (bias != nullptr) x = hn::Add(x, hn::Load(d, bias + at));
      if (p.has_alibi) {
        const auto distance =
            hn::Abs(hn::Sub(hn::Load(d, diagonal + lane), hn::Set(d, static_cast<T>(row))));
        x = hn::NegMulAdd(hn::Load(d, alibi + lane), distance, x);
      }
      hn::Store(x, d, scores + at);
    }
  }
}

/// The keys that each lane of a panel sees, counted from j.lo: row `key` is visible iff
/// lo <= key < hi. Lanes past the last row see what it sees.
template <class T>
struct LaneBounds {
  alignas(64) T lo[host::kCpuMaxPanelBytes / sizeof(T)];
  alignas(64) T hi[host::kCpuMaxPanelBytes / sizeof(T)];

  LaneBounds(const QueryTile& tile, std::int64_t first, std::int64_t width, KeyRange j) {
    for (std::int64_t lane = 0; lane < width; ++lane) {
      const KeyRange keys = tile.keys[std::min(first + lane, tile.rows - 1)];
      lo[lane] = static_cast<T>(std::clamp<std::int64_t>(keys.lo - j.lo, 0, j.hi - j.lo));
      hi[lane] = static_cast<T>(std::clamp<std::int64_t>(keys.hi - j.lo, 0, j.hi - j.lo));
    }
  }
  HWY_INLINE auto visible(std::int64_t key, std::int64_t lane) const {
    const Vec<T> d;
    const auto at = hn::Set(d, static_cast<T>(key));
    return hn::And(hn::Ge(at, hn::Load(d, lo + lane)), hn::Lt(at, hn::Load(d, hi + lane)));
  }
};

/// Scores that a row does not see become -inf, whatever was there.
template <class T>
void apply_mask(const Launch<T>& launch, const QueryTile& tile, std::int64_t first, KeyRange j,
                T* scores) {
  const Vec<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const LaneBounds<T> bounds(tile, first, launch.width, j);
  const auto minus_infinity = hn::Set(d, -kInfinity<T>);
  for (std::int64_t key = 0; key < j.hi - j.lo; ++key) {
    for (std::int64_t lane = 0; lane < launch.width; lane += lanes) {
      T* at = scores + key * launch.width + lane;
      hn::Store(hn::IfThenElse(bounds.visible(key, lane), hn::Load(d, at), minus_infinity), d, at);
    }
  }
}

/// Scores of the panel at row `first` for keys `j`, whose packed rows begin at `k`.
template <bool kFull, class T>
HWY_INLINE void panel_scores(const Launch<T>& launch, const QueryTile& tile, std::int64_t first,
                             const PanelKeys& keys, KeyRange j, const T* q, const T* k, T* bias,
                             T* slope, T* scores) {
  const std::int64_t dim = launch.problem.dim;
  gemm<true, Update::overwrite>(j.hi - j.lo, dim, k, Walk{.row = host::tile_row<T>(dim)}, q,
                                scores);
  if constexpr (kFull) {
    const bool biased = launch.problem.bias_dtype != DType::none;
    if (biased) load_bias(launch, tile, first, j, bias);
    apply_options(launch, tile, first, j, biased ? bias : nullptr, slope, scores);
  }
  if (j.lo < keys.all.lo || j.hi > keys.all.hi) apply_mask(launch, tile, first, j, scores);
}

}  // namespace onchip::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
