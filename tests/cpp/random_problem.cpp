// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>

#include "fixture.hpp"

namespace fixture {
namespace {

using onchip::DType;
using onchip::TensorView;
using Index = std::int64_t;
using Shape = std::vector<Index>;

/// Extents of a problem, before there is memory.
struct Extents {
  Index batch = 0, heads_kv = 0, group = 0, dim = 0, dim_v = 0;
  std::vector<std::int32_t> rows, keys;            // of each sequence, as laid out
  std::vector<std::int32_t> rows_used, keys_used;  // that count
  [[nodiscard]] Index heads() const { return heads_kv * group; }
};

Index random_length(const Spec& spec, Rng& rng) {
  if (chance(rng, 0.1)) return uniform(rng, 0, 3);
  if (spec.small || chance(rng, 0.6)) return uniform(rng, 1, 40);
  return uniform(rng, 41, 200);
}

Index random_dim(const Spec& spec, Rng& rng) {
  constexpr std::array<Index, 6> kUsual{8, 16, 32, 64, 96, 128};
  if (spec.gpu) return 8 * (chance(rng, 0.8) ? uniform(rng, 1, 16) : uniform(rng, 17, 32));
  if (spec.small) return uniform(rng, 1, 24);
  return chance(rng, 0.4) ? kUsual[rng() % kUsual.size()] : uniform(rng, 1, 160);
}

/// Lengths differ between sequences in packed and paged problems only.
Extents random_extents(const Spec& spec, Rng& rng) {
  Extents x;
  x.batch = chance(rng, 0.03) ? 0 : uniform(rng, 1, 4);
  x.heads_kv = uniform(rng, 1, 3);
  x.group = uniform(rng, 1, 4);
  x.dim = random_dim(spec, rng);
  x.dim_v = chance(rng, 0.6) ? x.dim : random_dim(spec, rng);
  const auto lengths = [&](bool ragged) {
    std::vector<std::int32_t> all;
    for (Index b = 0; b < x.batch; ++b) {
      all.push_back(ragged || b == 0 ? static_cast<std::int32_t>(random_length(spec, rng))
                                     : all.front());
    }
    return all;
  };
  x.rows = lengths(spec.packed);
  x.keys = lengths(spec.packed && !spec.paged);
  return x;
}

/// Work of the reference, in multiplications.
double work(const Extents& x) {
  double total = 0;
  for (std::size_t b = 0; b < x.rows.size(); ++b) {
    total += static_cast<double>(x.rows[b]) * x.keys[b];
  }
  return total * static_cast<double>(x.heads() * (x.dim + x.dim_v));
}

std::vector<std::int32_t> starts(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> all{0};
  for (std::int32_t length : lengths) all.push_back(all.back() + length);
  return all;
}

class Builder {
 public:
  Builder(const Spec& spec, Rng& rng) : spec_(spec), rng_(rng) {}

  std::unique_ptr<Problem> build() {
    do {
      x_ = random_extents(spec_, rng_);
    } while (work(x_) > 4e6);
    layout_ = ragged() ? Layout::unique : Layout::read;
    if (chance(rng_, 0.2)) layout_ = Layout::dense;
    add_tensors();
    add_lengths();
    add_mask();
    add_scores();
    problem_->add_results(spec_.backward, layout_, rng_);
    if (!spec_.backward) {
      add_splits();
      if (chance(rng_, 0.25)) a().options.softmax = onchip::Softmax::safe;
    }
    if (spec_.backward && spec_.gpu) a().options.deterministic = chance(rng_, 0.5);
    poison_unused();
    return std::move(problem_);
  }

 private:
  [[nodiscard]] bool ragged() const { return spec_.packed || spec_.paged || with_lengths_; }
  onchip::Attention& a() { return problem_->attention; }

  void add_tensors() {
    Shape q{x_.batch, length(x_.rows), x_.heads(), x_.dim};
    Shape k{x_.batch, length(x_.keys), x_.heads_kv, x_.dim};
    if (spec_.packed) {
      const Index tail_q = chance(rng_, 0.5) ? uniform(rng_, 0, 4) : 0;
      const Index tail_k = chance(rng_, 0.5) ? uniform(rng_, 0, 4) : 0;
      q = {starts(x_.rows).back() + tail_q, x_.heads(), x_.dim};
      k = {starts(x_.keys).back() + tail_k, x_.heads_kv, x_.dim};
    }
    if (spec_.paged) {
      constexpr std::array<Index, 5> kSizes{1, 4, 7, 16, 64};
      page_size_ = kSizes[rng_() % kSizes.size()];
      max_pages_ = (length(x_.keys) + page_size_ - 1) / page_size_ + uniform(rng_, 0, 2);
      k = {x_.batch * max_pages_ + uniform(rng_, 0, 3), page_size_, x_.heads_kv, x_.dim};
    }
    a().q = problem_->add(spec_.dtype, q, layout_, rng_);
    a().k = problem_->add(spec_.dtype, k, layout_, rng_);
    k.back() = x_.dim_v;
    a().v = problem_->add(spec_.dtype, k, layout_, rng_);
  }

  static Index length(const std::vector<std::int32_t>& lengths) {
    return lengths.empty() ? 3 : lengths.front();
  }

  void add_lengths() {
    if (spec_.packed) {
      a().cu_seqlens_q = problem_->add_integers(starts(x_.rows), rng_, layout_);
      if (!spec_.paged) a().cu_seqlens_k = problem_->add_integers(starts(x_.keys), rng_, layout_);
    }
    const auto cut = [&](const std::vector<std::int32_t>& lengths) {
      std::vector<std::int32_t> used(lengths);
      for (std::int32_t& n : used) n = static_cast<std::int32_t>(uniform(rng_, 0, n));
      return used;
    };
    x_.rows_used = x_.rows;
    x_.keys_used = x_.keys;
    if (ragged() && chance(rng_, 0.3)) {
      x_.rows_used = cut(x_.rows);
      a().seqused_q = problem_->add_integers(x_.rows_used, rng_, layout_);
    }
    if (spec_.paged || (ragged() && chance(rng_, 0.3))) {
      x_.keys_used = cut(x_.keys);
      a().seqused_k = problem_->add_integers(x_.keys_used, rng_, layout_);
    }
    if (spec_.paged) add_block_table();
  }

  /// Pages in random order; entries that no key needs are -1.
  void add_block_table() {
    std::vector<std::int32_t> pages(static_cast<std::size_t>(a().k.shape[0]));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), rng_);
    a().block_table =
        problem_->add(DType::int32, {x_.batch, max_pages_}, Layout::unique, rng_, LastStride::any);
    std::size_t next = 0;
    oracle::for_each_index(Shape{x_.batch, max_pages_}, [&](std::span<const Index> at) {
      const bool needed = at[1] * page_size_ < x_.keys_used[static_cast<std::size_t>(at[0])];
      const std::int32_t page = needed ? pages[next++] : -1;
      oracle::encode(DType::int32, oracle::address(a().block_table, at), page);
    });
  }

  void add_mask() {
    onchip::Options& o = a().options;
    o.causal = chance(rng_, 0.35);
    if (chance(rng_, 0.25)) o.window_left = uniform(rng_, 0, chance(rng_, 0.1) ? 5000 : 60);
    if (!o.causal && chance(rng_, 0.25)) {
      o.window_right = uniform(rng_, 0, chance(rng_, 0.1) ? 5000 : 60);
    }
  }

  void add_scores() {
    onchip::Options& o = a().options;
    const auto real = [&](double low, double high) {
      return low + (high - low) * static_cast<double>(rng_() % 100000) / 1e5;
    };
    if (chance(rng_, 0.3)) o.scale = real(0.05, 0.5);
    if (chance(rng_, 0.2)) o.softcap = real(0.5, 20);
    if (chance(rng_, 0.25)) {
      constexpr std::array<double, 4> kRates{0.1, 0.25, 0.5, 0.85};
      o.dropout_p = kRates[rng_() % kRates.size()];
      o.seed = rng_();
      o.offset = rng_() >> uniform(rng_, 0, 63);
    }
    const DType statistics = problem_->statistics();
    if (chance(rng_, 0.2)) {
      const Shape shape = chance(rng_, 0.5) ? Shape{x_.heads()} : Shape{x_.batch, x_.heads()};
      a().alibi_slopes = problem_->add(statistics, shape, layout_, rng_, LastStride::any);
      fill_normal(a().alibi_slopes, rng_, 0.1);
    }
    if (chance(rng_, 0.25)) {
      a().sinks = problem_->add(statistics, {x_.heads()}, layout_, rng_, LastStride::any);
    }
    if (chance(rng_, 0.35)) add_bias(chance(rng_, 0.5) ? spec_.dtype : statistics);
  }

  void add_bias(DType dtype) {
    const auto most = [](const std::vector<std::int32_t>& lengths) {
      return lengths.empty() ? Index{1} : Index{*std::max_element(lengths.begin(), lengths.end())};
    };
    Shape shape{x_.batch, x_.heads(), most(x_.rows), most(x_.keys)};
    if (spec_.paged) shape[3] = max_pages_ * page_size_;
    if (!spec_.packed && !spec_.paged && x_.batch > 0) {
      shape[2] = x_.rows[0];
      shape[3] = x_.keys[0];
    }
    if (x_.batch == 0) shape = {1, 1, 1, 1};
    for (Index& extent : shape) {
      if (chance(rng_, 0.4)) extent = 1;
    }
    a().bias = problem_->add(dtype, shape, layout_, rng_, LastStride::any);
    if (chance(rng_, 0.3)) {
      set_where(
          a().bias, [&](auto) { return chance(rng_, 0.2); },
          -std::numeric_limits<double>::infinity());
    }
  }

  void add_splits() {
    if (!chance(rng_, 0.4)) return;
    if (chance(rng_, 0.5)) {
      a().options.split_size = uniform(rng_, 1, 100);
    } else {
      a().options.num_splits = static_cast<std::int32_t>(uniform(rng_, 0, 5));
    }
  }

  /// `poison` wherever the contract says that memory is not looked at.
  void poison_unused() {
    if (layout_ == Layout::read) return;  // broadcast elements are used elsewhere too
    poison_rows(a().q, false, false);
    poison_rows(a().dout, false, false);
    poison_rows(a().dlse, false, true);
    if (spec_.paged) {
      poison_pages();
    } else {
      poison_rows(a().k, true, false);
      poison_rows(a().v, true, false);
    }
    if (a().bias.given()) poison_bias();
  }

  void poison_rows(const TensorView& view, bool keys, bool heads_first) {
    if (!view.given()) return;
    const std::vector<std::int32_t>& used = keys ? x_.keys_used : x_.rows_used;
    const std::vector<std::int32_t> start = starts(keys ? x_.keys : x_.rows);
    set_where(
        view,
        [&](std::span<const Index> at) {
          if (!spec_.packed)
            return at[heads_first ? 2 : 1] >= used[static_cast<std::size_t>(at[0])];
          const Index token = at[heads_first ? 1 : 0];
          for (std::size_t b = 0; b < used.size(); ++b) {
            if (token >= start[b] && token < start[b] + used[b]) return false;
          }
          return true;
        },
        spec_.poison);
  }

  void poison_pages() {
    std::set<std::pair<Index, Index>> needed;
    for (Index b = 0; b < x_.batch; ++b) {
      for (Index j = 0; j < x_.keys_used[static_cast<std::size_t>(b)]; ++j) {
        const std::array<Index, 2> entry{b, j / page_size_};
        const double page = oracle::decode(DType::int32, oracle::address(a().block_table, entry));
        needed.emplace(static_cast<Index>(page), j % page_size_);
      }
    }
    const auto unused = [&](std::span<const Index> at) { return !needed.contains({at[0], at[1]}); };
    set_where(a().k, unused, spec_.poison);
    set_where(a().v, unused, spec_.poison);
  }

  void poison_bias() {
    std::set<std::array<Index, 4>> needed;
    for (Index b = 0; b < x_.batch; ++b) {
      const Index rows = x_.rows_used[static_cast<std::size_t>(b)];
      const Index keys = x_.keys_used[static_cast<std::size_t>(b)];
      oracle::for_each_index(Shape{x_.heads(), rows, keys}, [&](std::span<const Index> at) {
        if (!oracle::visible(a().options, rows, keys, at[1], at[2])) return;
        std::array<Index, 4> entry{b, at[0], at[1], at[2]};
        for (std::size_t axis = 0; axis < 4; ++axis) {
          if (a().bias.shape[axis] == 1) entry[axis] = 0;
        }
        needed.insert(entry);
      });
    }
    set_where(
        a().bias,
        [&](std::span<const Index> at) { return !needed.contains({at[0], at[1], at[2], at[3]}); },
        spec_.poison);
  }

  Spec spec_;
  Rng& rng_;
  Extents x_;
  Layout layout_ = Layout::read;
  bool with_lengths_ = chance(rng_, 0.3);
  Index page_size_ = 0, max_pages_ = 0;
  std::unique_ptr<Problem> problem_ = std::make_unique<Problem>();
};

}  // namespace

std::unique_ptr<Problem> random_problem(const Spec& spec, Rng& rng) {
  return Builder(spec, rng).build();
}

}  // namespace fixture
