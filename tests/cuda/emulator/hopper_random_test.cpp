// SPDX-License-Identifier: Apache-2.0
// Random problems that Hopper's forward kernels take, and nothing else: of those of
// contract_test.cpp few are.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "device.hpp"

namespace {

using fixture::chance;
using fixture::Layout;
using fixture::Problem;
using fixture::Rng;
using fixture::uniform;
using onchip::DType;
using onchip::Pass;
using onchip::TensorView;
using Index = std::int64_t;
using Lengths = std::vector<std::int32_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Plans for the emulated GPU, which must be Hopper's.
void call(const onchip::Attention& attention, Pass pass) {
  const device::Mirror mirror(attention);
  mirror.upload();
  const device::Launch launch(mirror.attention, pass);
  ASSERT_TRUE(launch.info().kernel.starts_with("sm90")) << launch.info().kernel;
  const device::Stream stream;
  launch(mirror.attention, stream);
  stream.synchronize();
  mirror.download();
}

class Builder {
 public:
  Builder(DType dtype, bool packed, Rng& rng) : dtype_(dtype), packed_(packed), rng_(rng) {}

  std::unique_ptr<Problem> build() {
    batch_ = uniform(rng_, 1, packed_ ? 4 : 2);
    heads_kv_ = uniform(rng_, 1, 2);
    constexpr std::array<Index, 7> kGroups{1, 2, 3, 4, 8, 16, 64};
    const Index group = kGroups[rng_() % kGroups.size()];
    heads_ = heads_kv_ * group;
    rows_ = lengths(group > 4 ? 20 : 300);
    keys_ = lengths(450);
    if (!packed_ && chance(rng_, 0.1)) {  // another tile at D 64
      batch_ = heads_kv_ = 1, heads_ = group > 4 ? 4 : group;
      rows_.resize(1);
      keys_.assign(1, static_cast<std::int32_t>(uniform(rng_, 8192, 8400)));
      long_ = true;
    }
    add_tensors();
    rows_used_ = add_lengths(rows_, a().cu_seqlens_q, a().seqused_q);
    keys_used_ = add_lengths(keys_, a().cu_seqlens_k, a().seqused_k);
    add_options();
    if (chance(rng_, 0.3)) add_lead();
    poison(a().q, rows_, rows_used_);
    poison(a().k, keys_, keys_used_);
    poison(a().v, keys_, keys_used_);
    problem_->add_results(false, Layout::dense, rng_);
    return std::move(problem_);
  }

 private:
  onchip::Attention& a() { return problem_->attention; }

  Lengths lengths(Index most) {
    Lengths all;
    for (Index b = 0; b < batch_; ++b) {
      const Index length =
          chance(rng_, 0.2) ? uniform(rng_, 0, 3) : uniform(rng_, 1, most / batch_);
      all.push_back(static_cast<std::int32_t>(packed_ ? length : std::max<Index>(length, 1)));
    }
    if (!packed_) all.assign(all.size(), all.front());
    if (packed_ && starts(all).back() == 0) all.back() = 1;
    return all;
  }

  static Lengths starts(const Lengths& all) {
    Lengths from{0};
    for (const std::int32_t length : all) from.push_back(from.back() + length);
    return from;
  }

  /// Rows of all heads together, or heads apart.
  TensorView add(const Lengths& all, Index heads, Index dim) {
    const bool apart = chance(rng_, 0.4);
    std::vector<Index> shape{batch_, all.front(), heads, dim};
    if (packed_) shape = {starts(all).back(), heads, dim};
    const std::size_t row = shape.size() - 3;
    if (apart) std::swap(shape[row], shape[row + 1]);
    TensorView view = problem_->add(dtype_, shape, Layout::dense, rng_);
    if (apart) {
      std::swap(view.shape[row], view.shape[row + 1]);
      std::swap(view.stride[row], view.stride[row + 1]);
    }
    return view;
  }

  void add_tensors() {
    constexpr std::array<std::pair<Index, Index>, 6> kDims{
        {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}}};
    auto [dim, dim_v] = kDims[long_ ? 0 : rng_() % kDims.size()];
    if (chance(rng_, 0.3)) dim -= 8 * uniform(rng_, 0, 3);
    if (chance(rng_, 0.3)) dim_v -= 8 * uniform(rng_, 0, 7);
    a().q = add(rows_, heads_, dim);
    a().k = add(keys_, heads_kv_, dim);
    a().v = add(keys_, heads_kv_, dim_v);
  }

  Lengths add_lengths(const Lengths& all, TensorView& first, TensorView& used) {
    if (packed_) first = problem_->add_integers(starts(all), rng_);
    if (!chance(rng_, 0.3)) return all;
    Lengths some = all;
    for (std::int32_t& n : some) n = static_cast<std::int32_t>(uniform(rng_, 0, n));
    used = problem_->add_integers(some, rng_);
    return some;
  }

  void add_options() {
    onchip::Options& o = a().options;
    o.causal = chance(rng_, 0.4);
    if (packed_ && chance(rng_, 0.5))
      o.max_seqlen_q = *std::max_element(rows_.begin(), rows_.end());
    if (chance(rng_, 0.3)) o.window_left = uniform(rng_, 0, 200);
    if (!o.causal && chance(rng_, 0.2)) o.window_right = uniform(rng_, 0, 100);
    if (chance(rng_, 0.25)) o.softmax = onchip::Softmax::safe;
    if (chance(rng_, 0.2)) o.softcap = 5;
    if (chance(rng_, 0.2)) {
      a().alibi_slopes = problem_->add(DType::float32, {heads_}, Layout::dense, rng_);
      fixture::fill_normal(a().alibi_slopes, rng_, 0.1);
    }
    if (chance(rng_, 0.2)) {
      o.dropout_p = 0.3;
      o.seed = rng_();
      o.offset = rng_() % 1000;
    }
    if (chance(rng_, 0.25)) add_bias();
    if (chance(rng_, 0.3)) a().sinks = problem_->add(DType::float32, {heads_}, Layout::dense, rng_);
  }

  /// Of extents at random, packed ones with some rows and keys beyond them; some of it
  /// -inf.
  void add_bias() {
    const Index rows = *std::max_element(rows_.begin(), rows_.end());
    const Index keys = *std::max_element(keys_.begin(), keys_.end());
    const auto extent = [&](Index whole) { return chance(rng_, 0.3) ? 1 : whole; };
    a().bias = problem_->add(chance(rng_, 0.5) ? dtype_ : DType::float32,
                             {extent(batch_), extent(heads_), extent(rows), extent(keys)},
                             Layout::dense, rng_);
    if (chance(rng_, 0.5)) {
      fixture::set_where(
          a().bias, [&](auto) { return chance(rng_, 0.2); },
          -std::numeric_limits<double>::infinity());
    }
  }

  /// One key that leads all others in every row of a few, by more than float32 holds or by less.
  void add_lead() {
    constexpr double kQuery = 16;
    constexpr std::array<double, 4> kNats{5, 20, 60, 200};
    a().options.scale = 0.125;
    const double key = kNats[rng_() % kNats.size()] / (kQuery * 0.125);
    const Index leader = uniform(rng_, 0, std::max(keys_.front(), 1) - 1);
    const Index every = uniform(rng_, 1, 60);
    fixture::fill_normal(a().q, rng_, 0.5);
    const auto set = [&](const TensorView& view, double value, auto where) {
      const auto axis = static_cast<std::size_t>(view.ndim) - 1;
      fixture::set_where(
          view, [&](auto at) { return at[axis] == 0 && where(at[axis - 2]); }, value);
    };
    set(a().q, 0, [](Index) { return true; });
    set(a().q, kQuery, [&](Index row) { return row % every == 0; });
    set(a().k, 0, [](Index) { return true; });
    set(a().k, key, [&](Index at) { return at == leader; });
  }

  /// NaN in what does not count.
  void poison(const TensorView& view, const Lengths& all, const Lengths& used) const {
    const Lengths from = starts(all);
    fixture::set_where(
        view,
        [&](auto at) {
          if (!packed_) return at[1] >= used[static_cast<std::size_t>(at[0])];
          for (std::size_t b = 0; b < used.size(); ++b) {
            if (at[0] >= from[b] && at[0] < from[b] + used[b]) return false;
          }
          return true;
        },
        kNan);
  }

  DType dtype_;
  bool packed_;
  bool long_ = false;
  Rng& rng_;
  Index batch_ = 0, heads_ = 0, heads_kv_ = 0;
  Lengths rows_, keys_, rows_used_, keys_used_;
  std::unique_ptr<Problem> problem_ = std::make_unique<Problem>();
};

class HopperRandom : public ::testing::TestWithParam<std::tuple<DType, bool>> {};

TEST_P(HopperRandom, AreRight) {
  if (onchip::device_info("cuda:0").family < 90) GTEST_SKIP() << "the emulated GPU is another one";
  const auto& [dtype, packed] = GetParam();
  const auto count = static_cast<std::uint64_t>(25 * fixture::scale());
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    Rng rng(seed);
    const auto problem = Builder(dtype, packed, rng).build();
    problem->run_with(call, Pass::forward);
    problem->expect_right(false, "seed " + std::to_string(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Emulated, HopperRandom,
                         ::testing::Combine(::testing::Values(DType::bfloat16, DType::float16),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(onchip::name_of(std::get<DType>(info.param))) +
                                  (std::get<bool>(info.param) ? "_packed" : "_dense");
                         });

}  // namespace
