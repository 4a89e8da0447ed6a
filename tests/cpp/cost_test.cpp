// SPDX-License-Identifier: Apache-2.0
#include "host/cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "host/devices.hpp"
#include "onchip/io_model.hpp"

namespace onchip::host {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::int64_t pick(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

bool visible(const Span& span, std::int64_t i, std::int64_t j) {
  const std::int64_t distance = j - (i + span.keys - span.queries);
  return (span.left < 0 || distance >= -span.left) && (span.right < 0 || distance <= span.right);
}

Span random_span(std::mt19937_64& random) {
  Span span;
  span.queries = pick(random, 0, 40);
  span.keys = pick(random, 0, 40);
  span.left = pick(random, -1, 12);
  span.right = pick(random, -1, 12);
  if (pick(random, 0, 9) == 0) span.left = std::int64_t{1} << 40;  // wider than the sequence
  return span;
}

std::string name_of(const Span& s) {
  return std::to_string(s.queries) + " queries, " + std::to_string(s.keys) + " keys, left " +
         std::to_string(s.left) + ", right " + std::to_string(s.right);
}

Workload one_head(std::int64_t queries, std::int64_t keys, double dim, double element_bytes) {
  Workload work;
  work.batch = work.heads_q = work.heads_kv = 1;
  work.span = {queries, keys, -1, -1};
  work.total_q = static_cast<double>(queries);
  work.total_k = static_cast<double>(keys);
  work.dim = work.dim_v = dim;
  work.element_bytes = element_bytes;
  return work;
}

Workload random_workload(std::mt19937_64& random, Pass pass) {
  Workload work;
  work.pass = pass;
  work.batch = static_cast<double>(pick(random, 1, 3));
  work.heads_kv = static_cast<double>(pick(random, 1, 4));
  work.heads_q = work.heads_kv * static_cast<double>(pick(random, 1, 4));
  work.span = {pick(random, 1, 3000), pick(random, 1, 3000), pick(random, -1, 900),
               pick(random, -1, 900)};
  work.total_q = work.batch * static_cast<double>(work.span.queries);
  work.total_k = work.batch * static_cast<double>(work.span.keys);
  work.dim = static_cast<double>(8 * pick(random, 1, 32));
  work.dim_v = static_cast<double>(8 * pick(random, 1, 32));
  work.element_bytes = pick(random, 0, 1) == 0 ? 2 : 4;
  return work;
}

TEST(VisibleScores, EqualsALoopOverAllPairs) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const Span span = random_span(random);
    std::int64_t expected = 0;
    for (std::int64_t i = 0; i < span.queries; ++i) {
      for (std::int64_t j = 0; j < span.keys; ++j) expected += visible(span, i, j) ? 1 : 0;
    }
    ASSERT_EQ(visible_scores(span), static_cast<double>(expected)) << name_of(span);
    ASSERT_EQ(visible_scores(span.transposed()), static_cast<double>(expected)) << name_of(span);
  }
}

TEST(Visit, EqualsALoopOverTheTiles) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    const Span span = random_span(random);
    const std::int64_t tile_q = pick(random, 1, 9);
    const std::int64_t tile_k = pick(random, 1, 9);
    const std::int64_t group = pick(random, 1, 4);
    // A tile is visited from its first to its last visible key, whole tiles of keys at a time.
    Visits expected;
    for (std::int64_t r = 0; r < span.queries * group; r += tile_q) {
      std::int64_t first = span.keys, last = -1;
      for (std::int64_t row = r; row < std::min(r + tile_q, span.queries * group); ++row) {
        for (std::int64_t j = 0; j < span.keys; ++j) {
          if (!visible(span, row / group, j)) continue;
          first = std::min(first, j);
          last = std::max(last, j);
        }
      }
      if (last < 0) continue;
      const std::int64_t begin = first / tile_k * tile_k;
      const std::int64_t end = std::min(span.keys, (last / tile_k + 1) * tile_k);
      expected.keys += static_cast<double>(end - begin);
      expected.tiles += static_cast<double>(last / tile_k - first / tile_k + 1);
    }
    const Visits actual = visit(span, tile_q, tile_k, group);
    const std::string what = name_of(span) + ", tile " + std::to_string(tile_q) + " x " +
                             std::to_string(tile_k) + ", group " + std::to_string(group);
    ASSERT_EQ(actual.keys, expected.keys) << what;
    ASSERT_EQ(actual.tiles, expected.tiles) << what;
  }
}

TEST(VisibleScores, IsExactFarBeyondWhatALoopCouldDo) {
  const std::int64_t n = std::int64_t{1} << 31;
  EXPECT_EQ(visible_scores({n, n, -1, -1}), 0x1p62);
  EXPECT_EQ(visible_scores({n, n, -1, 0}), 0x1p61 + 0x1p30);  // n (n + 1) / 2
  EXPECT_EQ(visible_scores({n, n, 0, 0}), 0x1p31);
  EXPECT_EQ(visible_scores({n << 10, n << 10, -1, -1}), 0x1p82);
  EXPECT_EQ(visit({n, n, -1, 0}, 128, 128).tiles, 0x1p47 + 0x1p23);
}

// The check values worked by hand: one head, N = 4096, d = 64, elements of 2 bytes.
TEST(IoModel, MatchesTheWorkedExample) {
  const IoModel model = io_model(1, 1, 1, 4096, 4096, 64, 64, 2, 64, 64, false);
  EXPECT_EQ(model.q_bytes, 0.5 * kMiB);
  EXPECT_EQ(model.k_bytes, 0.5 * kMiB);
  EXPECT_EQ(model.v_bytes, 0.5 * kMiB);
  EXPECT_EQ(model.out_bytes, 0.5 * kMiB);
  EXPECT_EQ(model.lse_bytes, 16.0 * 1024);
  EXPECT_EQ(model.scores_bytes, 32 * kMiB);
  EXPECT_EQ(model.tile_bytes, 8.0 * 1024);
  EXPECT_EQ(model.tiles, 64.0 * 64);
  EXPECT_EQ(model.tiles_visited, 64.0 * 64);
  EXPECT_EQ(model.visible_scores, 4096.0 * 4096);
  // S and P written and read once each are 128 MiB; Q, K, V, O 2 MiB.
  EXPECT_EQ(model.standard_forward.read, 65.5 * kMiB);
  EXPECT_EQ(model.standard_forward.written, 64.5 * kMiB);
  EXPECT_EQ(model.standard_forward.total(), 130 * kMiB);
  // 64 query tiles read 1 MiB of K and V each.
  EXPECT_EQ(model.tiled_forward.read, 64.5 * kMiB);
  EXPECT_EQ(model.tiled_forward.written, 0.5 * kMiB + 16.0 * 1024);
  EXPECT_EQ(model.forward_flops, 4.0 * 4096 * 4096 * 64);
  EXPECT_EQ(model.backward_flops, 2.5 * model.forward_flops);
  // Seven passes over a matrix; q, k, v and dO twice in; dq, dk, dv out.
  EXPECT_EQ(model.standard_backward.total(), (7 * 32 + 5 * 0.5 + 3 * 0.5) * kMiB);
  // 64 key tiles: Q and dO (1 MiB), lse and D (32 KiB), sums of dQ read and written (2 MiB); K and
  // V; O and dO for D; the sums read once more.
  EXPECT_EQ(model.tiled_backward.read, (64 * (1 + 1.0 / 32 + 1) + 1 + 1 + 1) * kMiB);
  // The sums of dQ added to, set to zero and converted; dK and dV; D.
  EXPECT_EQ(model.tiled_backward.written, (64 + 1 + 0.5 + 1 + 1.0 / 64) * kMiB);
}

TEST(IoModel, ScoresOf2048TokensAre8MiBAHead) {
  EXPECT_EQ(io_model(1, 1, 1, 2048, 2048, 64, 64, 2, 64, 64, false).scores_bytes, 8 * kMiB);
  EXPECT_EQ(io_model(2, 3, 1, 2048, 2048, 64, 64, 2, 64, 64, false).scores_bytes, 48 * kMiB);
}

TEST(IoModel, CausalSkipsTheTilesAboveTheDiagonal) {
  const IoModel model = io_model(1, 1, 1, 4096, 4096, 64, 64, 2, 64, 64, true);
  EXPECT_EQ(model.tiles_visited, 64.0 * 65 / 2);
  EXPECT_EQ(model.visible_scores, 4096.0 * 4097 / 2);
  EXPECT_EQ(model.tiled_forward.read, (0.5 + 65.0 / 2) * kMiB);
  EXPECT_EQ(model.standard_forward.read, 65.5 * kMiB);  // it computes and masks everything
}

TEST(IoModel, GroupedHeadsShareKAndV) {
  const IoModel grouped = io_model(1, 8, 2, 512, 1024, 64, 32, 4, 64, 64, false);
  EXPECT_EQ(grouped.k_bytes, 2.0 * 1024 * 64 * 4);
  EXPECT_EQ(grouped.v_bytes, 2.0 * 1024 * 32 * 4);
  EXPECT_EQ(grouped.out_bytes, 8.0 * 512 * 32 * 4);
  EXPECT_EQ(grouped.forward_flops, 8.0 * 512 * 1024 * 2 * (64 + 32));
  EXPECT_EQ(grouped.backward_flops, 8.0 * 512 * 1024 * (6 * 64 + 4 * 32));
}

TEST(IoModel, NothingCostsNothing) {
  const IoModel model = io_model(0, 1, 1, 0, 0, 64, 64, 2, 64, 64, true);
  EXPECT_EQ(model.standard_forward.total() + model.tiled_forward.total(), 0);
  EXPECT_EQ(model.standard_backward.total() + model.tiled_backward.total(), 0);
  EXPECT_EQ(model.tiles + model.tiles_visited + model.forward_flops, 0);
}

TEST(IoModel, RefusesBadArgumentsByName) {
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message([] { io_model(1, 32, 6, 1, 1, 8, 8, 2, 64, 64, false); }),
            "io_model: heads_kv is 6, expected a divisor of heads_q");
  EXPECT_EQ(message([] { io_model(1, 1, 1, -1, 1, 8, 8, 2, 64, 64, false); }),
            "io_model: seqlen_q is -1, expected 0 or more");
  EXPECT_EQ(message([] { io_model(1, 1, 1, 1, 1, 8, 8, 3, 64, 64, false); }),
            "io_model: element_bytes is 3, expected 2, 4 or 8");
  EXPECT_EQ(message([] { io_model(1, 1, 1, 1, 1, 8, 8, 2, 0, 64, false); }),
            "io_model: tile_q is 0, expected 1 or more");
}

// Joining two neighbouring tiles never adds keys to visit, so doubling never adds bytes.
TEST(TiledTraffic, NeverRisesAsTilesGrow) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Workload work = random_workload(random, pass);
      Tiling tiling;
      tiling.tile_q = pick(random, 1, 40);
      tiling.tile_k = pick(random, 1, 40);
      tiling.l2_bytes = static_cast<double>(pick(random, 0, 1'000'000));
      tiling.float32_accumulators = work.element_bytes == 2;
      double before = INFINITY;
      for (int step = 0; step < 10; ++step) {
        const Traffic traffic = tiled_traffic(work, tiling);
        const double bytes = traffic.read + traffic.written;
        ASSERT_LE(bytes, before * (1 + 1e-12)) << name_of(work.span) << ", Br " << tiling.tile_q;
        before = bytes;
        (pass == Pass::forward ? tiling.tile_q : tiling.tile_k) *= 2;
      }
    }
  }
}

TEST(TiledTraffic, FallsAsOneOverBr) {
  const Workload work = one_head(8192, 8192, 64, 2);
  Tiling tiling;
  tiling.tile_k = 64;
  const double row = 64 * 2;
  for (tiling.tile_q = 16; tiling.tile_q <= 8192; tiling.tile_q *= 2) {
    const double tiles = 8192.0 / static_cast<double>(tiling.tile_q);
    EXPECT_EQ(tiled_traffic(work, tiling).read, 8192 * row + tiles * 2 * 8192 * row);
  }
}

TEST(TiledTraffic, ACacheThatHoldsAHeadMakesRereadsFree) {
  const Workload work = one_head(4096, 4096, 64, 2);
  Tiling tiling;
  tiling.tile_q = tiling.tile_k = 64;
  tiling.l2_bytes = kMiB;
  EXPECT_EQ(tiled_traffic(work, tiling).read, 1.5 * kMiB);
  tiling.l2_bytes = 0.5 * kMiB;  // half of K and V is read again by 63 of the 64 tiles
  EXPECT_EQ(tiled_traffic(work, tiling).read, (1.5 + 63 * 0.5) * kMiB);
}

TEST(TiledTraffic, SplitsReadQAgainAndMoveTheirPartials) {
  const Workload work = one_head(16, 65536, 128, 2);
  Tiling tiling;
  tiling.tile_q = tiling.tile_k = 128;
  const Traffic whole = tiled_traffic(work, tiling);
  tiling.num_splits = 8;
  const Traffic split = tiled_traffic(work, tiling);
  const double partials = 8 * 16 * (128 + 1) * 4;
  EXPECT_EQ(split.read - whole.read, 7 * 16 * 128 * 2 + partials);
  EXPECT_EQ(split.written - whole.written, partials);
}

TEST(TiledTraffic, HeadsThatShareATileShareItsKeys) {
  Workload work = one_head(1, 4096, 128, 2);
  work.heads_q = 8;
  Tiling tiling;
  tiling.tile_q = tiling.tile_k = 64;
  const double kv = 2 * 4096 * 128 * 2;
  const double q = 8 * 128 * 2;
  EXPECT_EQ(tiled_traffic(work, tiling).read, q + 8 * kv);
  tiling.packed_heads = 8;
  EXPECT_EQ(tiled_traffic(work, tiling).read, q + kv);
}

TEST(Cost, RooflineTakesTheSlowerOfArithmeticAndMemory) {
  const DeviceInfo& h200 = *find_named_device("H200");
  const Workload prefill = one_head(8192, 8192, 128, 2);
  Tiling tiling;
  tiling.tile_q = tiling.tile_k = 128;
  tiling.l2_bytes = static_cast<double>(h200.l2_bytes);
  const Cost long_one = tiled_cost(prefill, tiling, 0, h200);
  EXPECT_TRUE(long_one.compute_bound);
  EXPECT_DOUBLE_EQ(long_one.seconds, 4.0 * 8192 * 8192 * 128 / 989e12);

  const Workload decode = one_head(1, 8192, 128, 2);
  const Cost short_one = tiled_cost(decode, tiling, 0, h200);
  EXPECT_FALSE(short_one.compute_bound);
  const double bytes = short_one.bytes_read + short_one.bytes_written;
  EXPECT_DOUBLE_EQ(short_one.seconds, bytes / 4.8e12);
  EXPECT_DOUBLE_EQ(short_one.intensity, short_one.flops / bytes);
}

TEST(Cost, PeakFollowsTheElementType) {
  const DeviceInfo& a100 = *find_named_device("A100");
  EXPECT_EQ(peak_flops(a100, 2), 312e12);
  EXPECT_EQ(peak_flops(a100, 4), 19.5e12);
  EXPECT_EQ(peak_flops(*find_named_device("H200"), 8), 67e12);
}

TEST(Cost, MemoryGrowsLinearlyForTilesAndSquaredForTheStandardAlgorithm) {
  const DeviceInfo& h200 = *find_named_device("H200");
  const auto peaks = [&](std::int64_t n, Pass pass) {
    Workload work = one_head(n, n, 64, 2);
    work.pass = pass;
    return std::pair(tiled_cost(work, {}, 0, h200).peak_bytes,
                     standard_cost(work, h200).peak_bytes);
  };
  EXPECT_EQ(peaks(4096, Pass::forward), std::pair(0.5 * kMiB + 16 * 1024, 64.5 * kMiB));
  EXPECT_EQ(peaks(4096, Pass::backward), std::pair(1.5 * kMiB, (1.5 + 96) * kMiB));
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    EXPECT_EQ(peaks(8192, pass).first, 2 * peaks(4096, pass).first);
    EXPECT_GT(peaks(8192, pass).second, 3.9 * peaks(4096, pass).second);
  }
}

TEST(Cost, ADeviceWithoutFactsGivesNoInfinity) {
  const Cost cost = tiled_cost(one_head(64, 64, 64, 2), {}, 0, DeviceInfo{});
  EXPECT_EQ(cost.seconds, 0);
  EXPECT_TRUE(std::isfinite(cost.intensity));
  const Cost nothing = tiled_cost(Workload{}, {}, 0, DeviceInfo{});
  EXPECT_EQ(nothing.intensity, 0);
}

TEST(Workload, PackedSequencesShareTheirRowsEqually) {
  Problem problem;
  problem.dtype = DType::float16;
  problem.stats_dtype = DType::float32;
  problem.packed = true;
  problem.batch = 4;
  problem.heads_q = problem.heads_kv = 1;
  problem.dim = problem.dim_v = 64;
  problem.seqlen_q = problem.seqlen_k = 4000;  // no hint: all rows may belong to one sequence
  problem.total_q = problem.total_k = 4000;
  const Workload work = workload_of(problem);
  EXPECT_EQ(work.span.queries, 1000);
  EXPECT_EQ(work.span.keys, 1000);
  EXPECT_EQ(work.q_bytes(), 4000.0 * 64 * 2);
  EXPECT_EQ(tiled_flops(work), 4 * 1000.0 * 1000 * 4 * 64);
}

}  // namespace
}  // namespace onchip::host
