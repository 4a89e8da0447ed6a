// SPDX-License-Identifier: Apache-2.0
#include "oracle.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace oracle {
namespace {

using onchip::Attention;
using onchip::DType;
using onchip::Pass;
using onchip::TensorView;
using Index = std::int64_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

bool visible(const onchip::Options& options, Index rows, Index keys, Index i, Index j) {
  const Index distance = j - (i + keys - rows);
  const Index right = options.causal ? 0 : options.window_right;
  if (options.window_left >= 0 && distance < -options.window_left) return false;
  return right < 0 || distance <= right;
}

bool kept(const onchip::Options& options, Index head, Index i, Index j) {
  const auto word = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  std::array<std::uint32_t, 4> c{word(static_cast<std::uint64_t>(j / 8)),
                                 word(static_cast<std::uint64_t>(i)),
                                 word(static_cast<std::uint64_t>(head)), word(options.offset)};
  std::uint32_t key0 = word(options.seed);
  std::uint32_t key1 = word(options.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57} * c[2];
    c = {word(right >> 32) ^ c[1] ^ key0, word(right), word(left >> 32) ^ c[3] ^ key1, word(left)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  const auto lane = static_cast<std::size_t>(j % 8);
  const std::uint32_t bits = (c[lane / 2] >> (16 * (lane % 2))) & 0xFFFFU;
  return bits >= std::floor(65536 * options.dropout_p + 0.5);
}

namespace {

struct Matrix {
  Index rows = 0, cols = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(Index r, Index c) : rows(r), cols(c), values(static_cast<std::size_t>(r * c), 0.0) {}
  double& operator()(Index i, Index j) { return values[static_cast<std::size_t>(i * cols + j)]; }
  const double& operator()(Index i, Index j) const {
    return values[static_cast<std::size_t>(i * cols + j)];
  }
};

/// One sequence: where it lies and how much of it counts.
struct Sequence {
  Index b = 0, q_start = 0, k_start = 0, rows = 0, keys = 0;
};

/// One head of one sequence, cut to the lengths that count.
struct Head {
  Matrix q, k, v, dout, bias;
  std::vector<double> dlse;
  double slope = 0;
  double sink = -kInfinity;
};

struct HeadResults {
  Matrix out, dq, dk, dv, ds;
  std::vector<double> lse;
  double dsink = 0;
};

class Computation {
 public:
  Computation(const Attention& a, Pass pass, DType precision, double grid)
      : a_(a), pass_(pass), precision_(precision), grid_(grid) {
    packed_ = a.cu_seqlens_q.given();
    paged_ = a.block_table.given();
    heads_ = a.q.shape[packed_ ? 1 : 2];
    heads_kv_ = a.k.shape[a.k.ndim - 2];
    dim_ = a.q.shape[a.q.ndim - 1];
    scale_ = a.options.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<Index>(dim_, 1))));
    drop_ = std::floor(65536 * a.options.dropout_p + 0.5) / 65536;
  }

  Results run() {
    prepare();
    const Index batch = packed_ ? a_.cu_seqlens_q.shape[0] - 1 : a_.q.shape[0];
    for (Index b = 0; b < batch; ++b) {
      const Sequence s = sequence(b);
      for (Index h = 0; h < heads_; ++h) {
        const Head head = gather(s, h);
        HeadResults r = forward(s, h, head);
        if (pass_ == Pass::backward) backward(s, h, head, r);
        scatter(s, h, r);
      }
    }
    for (Tensor* gradient : {&results_.dk, &results_.dv}) {
      for (double& value : gradient->values) value = keep(value);
    }
    return std::move(results_);
  }

 private:
  [[nodiscard]] double keep(double value) const {
    return rounded(precision_, value * grid_) / grid_;
  }

  template <class Term>
  [[nodiscard]] double sum(Index count, Term term) const {
    double wide = 0;
    float narrow = 0;
    for (Index i = 0; i < count; ++i) {
      if (precision_ == DType::float64) {
        wide += term(i);
      } else {
        narrow += static_cast<float>(term(i));
      }
    }
    return precision_ == DType::float64 ? wide : narrow;
  }

  void prepare() {
    const auto shape = [](const TensorView& view) {
      return std::vector<Index>(view.shape.begin(), view.shape.begin() + view.ndim);
    };
    std::vector<Index> out = shape(a_.q);
    out.back() = a_.v.shape[a_.v.ndim - 1];
    results_.out = Tensor(out);
    const Index rows = a_.q.shape[packed_ ? 0 : 1];
    results_.lse = packed_ ? Tensor({heads_, rows}, -kInfinity)
                           : Tensor({a_.q.shape[0], heads_, rows}, -kInfinity);
    if (pass_ == Pass::forward) return;
    results_.dq = Tensor(shape(a_.q));
    results_.dk = Tensor(shape(a_.k));
    results_.dv = Tensor(shape(a_.v));
    if (a_.bias.given()) results_.dbias = Tensor(shape(a_.bias));
    if (a_.sinks.given()) results_.dsinks = Tensor(shape(a_.sinks));
  }

  static double get(const TensorView& view, std::initializer_list<Index> index) {
    return decode(view.dtype, address(view, {index.begin(), index.size()}));
  }
  static Index integer(const TensorView& view, std::initializer_list<Index> index) {
    return static_cast<Index>(get(view, index));
  }

  [[nodiscard]] Sequence sequence(Index b) const {
    Sequence s;
    s.b = b;
    s.rows = packed_ ? 0 : a_.q.shape[1];
    s.keys = packed_ || paged_ ? 0 : a_.k.shape[1];
    const auto stretch = [b](const TensorView& cu_seqlens, Index& start, Index& count) {
      if (!cu_seqlens.given()) return;
      start = integer(cu_seqlens, {b});
      count = integer(cu_seqlens, {b + 1}) - start;
    };
    stretch(a_.cu_seqlens_q, s.q_start, s.rows);
    stretch(a_.cu_seqlens_k, s.k_start, s.keys);
    if (a_.seqused_q.given()) s.rows = integer(a_.seqused_q, {b});
    if (a_.seqused_k.given()) s.keys = integer(a_.seqused_k, {b});
    return s;
  }

  /// Element of a query-like tensor: row i of sequence s.
  [[nodiscard]] double query(const TensorView& view, const Sequence& s, Index i, Index h,
                             Index d) const {
    return packed_ ? get(view, {s.q_start + i, h, d}) : get(view, {s.b, i, h, d});
  }
  [[nodiscard]] double key(const TensorView& view, const Sequence& s, Index j, Index g,
                           Index d) const {
    if (paged_) {
      const Index size = view.shape[1];
      return get(view, {integer(a_.block_table, {s.b, j / size}), j % size, g, d});
    }
    return packed_ ? get(view, {s.k_start + j, g, d}) : get(view, {s.b, j, g, d});
  }
  [[nodiscard]] double statistic(const TensorView& view, const Sequence& s, Index h,
                                 Index i) const {
    return packed_ ? get(view, {h, s.q_start + i}) : get(view, {s.b, h, i});
  }

  [[nodiscard]] Head gather(const Sequence& s, Index h) const {
    const Index g = h / (heads_ / heads_kv_);
    const Index dim_v = a_.v.shape[a_.v.ndim - 1];
    Head x;
    x.q = Matrix(s.rows, dim_);
    x.k = Matrix(s.keys, dim_);
    x.v = Matrix(s.keys, dim_v);
    for (Index d = 0; d < dim_; ++d) {
      for (Index i = 0; i < s.rows; ++i) x.q(i, d) = query(a_.q, s, i, h, d);
      for (Index j = 0; j < s.keys; ++j) x.k(j, d) = key(a_.k, s, j, g, d);
    }
    for (Index d = 0; d < dim_v; ++d) {
      for (Index j = 0; j < s.keys; ++j) x.v(j, d) = key(a_.v, s, j, g, d);
    }
    if (a_.bias.given()) {
      x.bias = Matrix(s.rows, s.keys);
      for (Index i = 0; i < s.rows; ++i) {
        for (Index j = 0; j < s.keys; ++j) x.bias(i, j) = get_bias(s.b, h, i, j);
      }
    }
    if (a_.alibi_slopes.given()) {
      x.slope =
          a_.alibi_slopes.ndim == 1 ? get(a_.alibi_slopes, {h}) : get(a_.alibi_slopes, {s.b, h});
    }
    if (a_.sinks.given()) x.sink = get(a_.sinks, {h});
    if (pass_ == Pass::backward) gather_gradients(s, h, x);
    return x;
  }

  void gather_gradients(const Sequence& s, Index h, Head& x) const {
    x.dout = Matrix(s.rows, x.v.cols);
    x.dlse.assign(static_cast<std::size_t>(s.rows), 0.0);
    for (Index i = 0; i < s.rows; ++i) {
      for (Index d = 0; d < x.v.cols; ++d) x.dout(i, d) = query(a_.dout, s, i, h, d);
      if (a_.dlse.given()) x.dlse[static_cast<std::size_t>(i)] = statistic(a_.dlse, s, h, i);
    }
  }

  [[nodiscard]] std::array<Index, 4> bias_index(Index b, Index h, Index i, Index j) const {
    std::array<Index, 4> index{b, h, i, j};
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (a_.bias.shape[axis] == 1) index[axis] = 0;
    }
    return index;
  }
  [[nodiscard]] double get_bias(Index b, Index h, Index i, Index j) const {
    return decode(a_.bias.dtype, address(a_.bias, bias_index(b, h, i, j)));
  }

  [[nodiscard]] bool sees(Index rows, Index keys, Index i, Index j) const {
    return visible(a_.options, rows, keys, i, j);
  }

  /// What dropout multiplies a weight by.
  [[nodiscard]] double dropout(const Sequence& s, Index h, Index i, Index j) const {
    if (drop_ == 0) return 1;
    return kept(a_.options, s.b * heads_ + h, i, j) ? 1 / (1 - drop_) : 0;
  }

  /// Scores of rules 1 to 3; `slope` receives the derivative of the soft cap.
  [[nodiscard]] double score(const Head& x, Index i, Index j, double* slope) const {
    double s = keep(keep(sum(dim_, [&](Index d) { return x.q(i, d) * x.k(j, d); })) * scale_);
    *slope = 1;
    if (a_.options.softcap > 0) {
      const double t = std::tanh(s / a_.options.softcap);
      *slope = 1 - t * t;
      s = keep(a_.options.softcap * t);
    }
    if (a_.bias.given()) s += x.bias(i, j);
    const Index distance = std::abs(i + x.k.rows - x.q.rows - j);
    return keep(s - x.slope * static_cast<double>(distance));
  }

  struct Row {
    std::vector<Index> seen;  // visible keys
    std::vector<double> p, slope;
    double p_sink = 0;
    double lse = -kInfinity;
  };

  [[nodiscard]] Row softmax(const Head& x, Index i) const {
    Row row;
    std::vector<double> s;
    double m = -kInfinity;
    bool nan = false;
    for (Index j = 0; j < x.k.rows; ++j) {
      if (!sees(x.q.rows, x.k.rows, i, j)) continue;
      double slope = 0;
      row.seen.push_back(j);
      s.push_back(score(x, i, j, &slope));
      row.slope.push_back(slope);
      m = std::max(m, s.back());
      nan = nan || std::isnan(s.back());
    }
    row.p.assign(s.size(), 0.0);
    if (m == -kInfinity && !nan) return row;  // no key, or none that a bias of -inf leaves
    if (nan || std::isnan(x.sink)) m = std::numeric_limits<double>::quiet_NaN();
    m = std::max(m, x.sink);
    double total = std::exp(x.sink - m);
    for (double value : s) total += std::exp(value - m);
    for (std::size_t n = 0; n < s.size(); ++n) row.p[n] = keep(std::exp(s[n] - m) / total);
    row.p_sink = std::exp(x.sink - m) / total;
    row.lse = m + std::log(total);
    return row;
  }

  [[nodiscard]] HeadResults forward(const Sequence& s, Index h, const Head& x) const {
    HeadResults r;
    r.out = Matrix(s.rows, x.v.cols);
    r.lse.assign(static_cast<std::size_t>(s.rows), -kInfinity);
    for (Index i = 0; i < s.rows; ++i) {
      const Row row = softmax(x, i);
      r.lse[static_cast<std::size_t>(i)] = row.lse;
      if (row.lse == -kInfinity) continue;
      std::vector<double> weight(row.p);
      for (std::size_t n = 0; n < weight.size(); ++n) {
        weight[n] = keep(weight[n] * dropout(s, h, i, row.seen[n]));
      }
      for (Index d = 0; d < x.v.cols; ++d) {
        r.out(i, d) = keep(sum(static_cast<Index>(weight.size()), [&](Index n) {
          const auto at = static_cast<std::size_t>(n);
          return weight[at] * x.v(row.seen[at], d);
        }));
      }
    }
    return r;
  }

  void backward(const Sequence& s, Index h, const Head& x, HeadResults& r) {
    r.dq = Matrix(s.rows, dim_);
    r.dk = Matrix(s.keys, dim_);
    r.dv = Matrix(s.keys, x.v.cols);
    r.ds = Matrix(s.rows, s.keys);
    for (Index i = 0; i < s.rows; ++i) {
      const Row row = softmax(x, i);
      if (row.lse == -kInfinity) continue;
      const double inner = sum(x.v.cols, [&](Index d) { return x.dout(i, d) * r.out(i, d); }) -
                           x.dlse[static_cast<std::size_t>(i)];
      r.dsink -= row.p_sink * inner;
      for (Index d = 0; d < x.v.cols; ++d)
        results_.spread += std::pow(x.dout(i, d) * r.out(i, d), 2);
      for (std::size_t n = 0; n < row.seen.size(); ++n) {
        const Index j = row.seen[n];
        const double factor = dropout(s, h, i, j);
        const double weight = keep(row.p[n] * factor);
        const double dp =
            keep(factor * keep(sum(x.v.cols, [&](Index d) { return x.dout(i, d) * x.v(j, d); })));
        r.ds(i, j) = keep(row.p[n] * (dp - inner));
        const double through = keep(r.ds(i, j) * row.slope[n]);
        for (Index d = 0; d < x.v.cols; ++d) add(r.dv(j, d), weight * x.dout(i, d));
        for (Index d = 0; d < dim_; ++d) {
          add(r.dq(i, d), scale_ * through * x.k(j, d));
          add(r.dk(j, d), scale_ * through * x.q(i, d));
        }
      }
      for (Index d = 0; d < dim_; ++d) r.dq(i, d) = keep(r.dq(i, d));
    }
  }

  void add(double& total, double term) const {
    total = precision_ == DType::float64 ? total + term : static_cast<float>(total + term);
  }

  void scatter(const Sequence& s, Index h, HeadResults& r) {
    const Index g = h / (heads_ / heads_kv_);
    const auto place = [&](Tensor& tensor, Index start, Index row, Index head, Index d) -> double& {
      return packed_ ? tensor({start + row, head, d}) : tensor({s.b, row, head, d});
    };
    for (Index i = 0; i < s.rows; ++i) {
      for (Index d = 0; d < r.out.cols; ++d) place(results_.out, s.q_start, i, h, d) = r.out(i, d);
      for (Index d = 0; d < r.dq.cols; ++d) place(results_.dq, s.q_start, i, h, d) = r.dq(i, d);
      (packed_ ? results_.lse({h, s.q_start + i}) : results_.lse({s.b, h, i})) =
          r.lse[static_cast<std::size_t>(i)];
    }
    if (pass_ == Pass::forward) return;
    for (Index j = 0; j < s.keys; ++j) {
      for (Index d = 0; d < r.dk.cols; ++d) add(place(results_.dk, s.k_start, j, g, d), r.dk(j, d));
      for (Index d = 0; d < r.dv.cols; ++d) add(place(results_.dv, s.k_start, j, g, d), r.dv(j, d));
    }
    if (a_.sinks.given()) results_.dsinks({h}) += r.dsink;
    if (!a_.bias.given()) return;
    for (Index i = 0; i < s.rows; ++i) {
      for (Index j = 0; j < s.keys; ++j) {
        const std::array<Index, 4> at = bias_index(s.b, h, i, j);
        results_.dbias({at[0], at[1], at[2], at[3]}) += r.ds(i, j);
      }
    }
  }

  const Attention& a_;
  Pass pass_;
  DType precision_;
  double grid_;
  bool packed_ = false, paged_ = false;
  Index heads_ = 0, heads_kv_ = 0, dim_ = 0;
  double scale_ = 1, drop_ = 0;
  Results results_;
};

}  // namespace

Results attention(const Attention& attention, Pass pass, DType precision, double grid) {
  return Computation(attention, pass, precision, grid).run();
}

}  // namespace oracle
