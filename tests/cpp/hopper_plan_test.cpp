// SPDX-License-Identifier: Apache-2.0
// Plans for the kernels of Hopper: what they take, how they cut the queries, the workspace.
#include "host/hopper_plan.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "host/checked.hpp"
#include "host/gpu_plan.hpp"
#include "host/planner.hpp"
#include "planner_scene.hpp"

namespace onchip::host {
namespace {

constexpr std::int64_t kTileRows[] = {64, 128, 192, 256};

std::string lacks(const Problem& p) {
  const char* what = hopper_lacks(p);
  return what == nullptr ? "" : what;
}

Problem changed(const Problem& good, const std::function<void(Problem&)>& change) {
  Problem p = good;
  change(p);
  return p;
}

Problem packed(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
               std::int64_t total_q, std::int64_t total_k, std::int64_t dim) {
  Problem p = dense(batch, heads_q, heads_kv, total_q, total_k, dim);
  p.packed = p.has_cu_seqlens_k = true;
  p.total_q = total_q;
  p.total_k = total_k;
  p.q.batch = p.k.batch = p.v.batch = p.out.batch = 0;
  return p;
}

// ---- What they take

TEST(HopperLacks, NothingForWhatTheKernelsCompute) {
  const Problem good = dense(2, 8, 2, 100, 300, 128);
  const auto takes = [&](const std::function<void(Problem&)>& change) {
    EXPECT_EQ(lacks(changed(good, change)), "");
  };
  takes([](Problem&) {});
  takes([](Problem& p) { p.dtype = DType::float16; });
  takes([](Problem& p) { p.softcap = 3, p.has_alibi = p.has_sinks = true; });
  takes([](Problem& p) { p.dropout_p = 0.1, p.bias_dtype = DType::float32; });
  takes([](Problem& p) { p.window_left = 5, p.window_right = 0; });
  takes([](Problem& p) { p.has_seqused_q = p.has_seqused_k = true; });
  takes([](Problem& p) { p.softmax = Softmax::safe; });
  takes([](Problem& p) { p.q.row += 8; });                     // 16 bytes
  takes([](Problem& p) { p.k = {128, 256, 2 * 256 * 300}; });  // axes in any order
  EXPECT_EQ(lacks(packed(3, 8, 2, 100, 300, 128)), "");
}

TEST(HopperLacks, SaysWhat) {
  const Problem good = dense(2, 8, 2, 100, 300, 128);
  const auto says = [&](const std::string& what, const std::function<void(Problem&)>& change) {
    EXPECT_EQ(lacks(changed(good, change)), what);
  };
  says("a backward pass", [](Problem& p) { p.pass = Pass::backward; });
  says("float32", [](Problem& p) { p.dtype = DType::float32; });
  says("pages", [](Problem& p) { p.paged = true; });
  for (const double scale : {0.0, -1.0, 1e-50}) {
    says("such a scale", [&](Problem& p) { p.scale = scale; });
  }
}

TEST(HopperLacks, StridesThatTmaCannotFollow) {
  constexpr std::int64_t kReach = std::int64_t{1} << 39;  // elements of 2 bytes
  Strides Problem::* const tensors[] = {&Problem::q, &Problem::k, &Problem::v, &Problem::out};
  std::int64_t Strides::* const axes[] = {&Strides::batch, &Strides::row, &Strides::head};
  const Problem good = dense(2, 8, 2, 100, 300, 128);
  Problem single = dense(1, 1, 1, 1, 1, 128);
  for (const auto tensor : tensors) {
    for (const auto axis : axes) {
      const std::int64_t old = good.*tensor.*axis;
      for (const std::int64_t stride :
           {old + 1, old + 4, std::int64_t{0}, std::int64_t{-8}, -old, std::int64_t{4}, kReach,
            kReach * 8, std::int64_t{1} << 60}) {
        const auto set = [&](Problem& p) { p.*tensor.*axis = stride; };
        EXPECT_EQ(lacks(changed(good, set)), "such strides") << stride;
        // The stride of a single element is not used.
        EXPECT_EQ(lacks(changed(single, set)), "") << stride;
      }
      // A group of q's heads, 4 here, is one step of an axis.
      const bool group = tensor == &Problem::q && axis == &Strides::head;
      const std::int64_t most = group ? kReach / 4 - 8 : kReach - 8;
      EXPECT_EQ(lacks(changed(good, [&](Problem& p) { p.*tensor.*axis = most; })), "");
      EXPECT_EQ(lacks(changed(good, [&](Problem& p) { p.*tensor.*axis = most + 8; })),
                "such strides");
    }
  }
  // One axis holds the tokens of all sequences.
  Problem tokens = packed(3, 8, 2, 100, 300, 128);
  EXPECT_EQ(lacks(tokens), "");
  tokens.v.row = 0;
  EXPECT_EQ(lacks(tokens), "such strides");
}

TEST(HopperLacks, LengthsBeyond32BitsAndEmptyTensors) {
  constexpr std::int64_t kFar = std::int64_t{1} << 29;
  for (const std::int64_t extent : {std::int64_t{0}, kFar, kFar * 4}) {
    EXPECT_EQ(lacks(dense(extent, 2, 2, 8, 8, 64)), "such lengths") << extent;
    EXPECT_EQ(lacks(dense(1, 2, 2, extent, 8, 64)), "such lengths") << extent;
    EXPECT_EQ(lacks(dense(1, 2, 2, 8, extent, 64)), "such lengths") << extent;
    EXPECT_EQ(lacks(packed(extent, 2, 2, 8, 8, 64)), "such lengths") << extent;
    EXPECT_EQ(lacks(packed(2, 2, 2, extent, 8, 64)), "such lengths") << extent;
    EXPECT_EQ(lacks(packed(2, 2, 2, 8, extent, 64)), "such lengths") << extent;
  }
  EXPECT_EQ(lacks(dense(1, 1, 1, 8, kFar - 1, 8)), "");
  // sm80 serves them.
  for (const Problem& p : {dense(0, 2, 2, 8, 8, 64), dense(1, 2, 2, 0, 8, 64),
                           dense(1, 2, 2, 8, 0, 64), packed(0, 2, 2, 8, 8, 64)}) {
    EXPECT_EQ(make_plan(p, hopper()).backend, "sm80");
  }
}

// ---- Tiles

TEST(HopperTiles, BoundWhatAnyPackedLengthsNeed) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t end) { return static_cast<std::int64_t>(random() % end); };
  for (int round = 0; round < 5000; ++round) {
    const std::int64_t tile = kTileRows[random() % 4];
    const std::int64_t heads_kv = 1 + below(3);
    const std::int64_t group = random() % 2 == 0 ? std::int64_t{1} << below(8) : 1 + below(9);
    const std::int64_t batch = 1 + below(12);
    const std::uint64_t longest = random() % 2 == 0 ? 20 : 1000;
    Problem p = packed(batch, heads_kv * group, heads_kv, 0, 1, 64);
    std::vector<std::int64_t> rows;
    for (std::int64_t b = 0; b < batch; ++b) rows.push_back(below(longest));
    for (const std::int64_t n : rows) p.total_q += n;
    p.total_q += below(3) * below(100);                // tokens of no sequence
    if (random() % 2 == 0) p.hint_q = 1 + below(300);  // right or wrong

    const std::int32_t shift = hopper_pack_shift(p, tile);
    const std::int64_t span = tile >> shift;
    std::int64_t tiles = 0;
    for (const std::int64_t n : rows) tiles += (n + span - 1) / span * (group >> shift);
    ASSERT_LE(tiles, hopper_tiles(p, tile)) << "round " << round;
    ASSERT_LE(hopper_tiles(p, tile), (p.total_q / span + batch) * (group >> shift));
    ASSERT_EQ(hopper_blocks(p, tile), hopper_tiles(p, tile) * heads_kv);
  }
}

TEST(HopperTiles, HoldAWholeGroupWhereASequenceIsShorter) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 5000; ++round) {
    const std::int64_t tile = kTileRows[random() % 4];
    const auto group = static_cast<std::int64_t>(1 + random() % 130);
    const auto rows = static_cast<std::int64_t>(1 + random() % 400);
    const Problem p = dense(2, 3 * group, 3, rows, 100, 64);
    const std::int32_t shift = hopper_pack_shift(p, tile);
    const std::int64_t heads = std::int64_t{1} << shift;
    ASSERT_TRUE(heads == 1 || heads == group);
    ASSERT_TRUE(heads == 1 || rows < tile);
    ASSERT_EQ(tile % heads, 0);
    // As many positions of as many heads as there are, none twice.
    const std::int64_t tiles = hopper_tiles(p, tile);
    ASSERT_EQ(tiles, ceil_div(rows, tile / heads) * (group / heads));
    ASSERT_GE(tiles * tile, rows * group);
    ASSERT_EQ(hopper_blocks(p, tile), tiles * 3 * 2);
  }
  EXPECT_EQ(hopper_pack_shift(dense(1, 8, 2, 16, 100, 64), 128), 2);
  EXPECT_EQ(hopper_pack_shift(dense(1, 6, 2, 16, 100, 64), 128), 0);   // no power of two
  EXPECT_EQ(hopper_pack_shift(dense(1, 8, 2, 128, 100, 64), 128), 0);  // full without
  EXPECT_EQ(hopper_pack_shift(dense(1, 128, 1, 1, 100, 64), 192), 0);  // 1.5 positions a tile
}

/// What else is in a packed batch must not change how a sequence is cut.
TEST(HopperTiles, OfPackedSequencesFollowTheHintAlone) {
  for (const std::int64_t batch : {1, 2, 50}) {
    for (const std::int64_t total : {1, 100, 127, 128, 5000}) {
      Problem p = packed(batch, 8, 2, total, 800, 64);
      EXPECT_EQ(hopper_pack_shift(p, 128), 0);
      p.hint_q = 127;
      EXPECT_EQ(hopper_pack_shift(p, 128), 2);
      p.hint_q = 128;
      EXPECT_EQ(hopper_pack_shift(p, 128), 0);
    }
  }
}

/// Heads that share a tile by the kernel's rule, not by that of sm80.
TEST(HopperTiles, AreThoseOfTheCostModel) {
  Problem p = dense(2, 24, 8, 16, 4096, 128);  // groups of 3
  PlanInfo info = make_plan(p, hopper());
  EXPECT_EQ(info.backend, "sm90");
  EXPECT_EQ(tiling_of(p, info).packed_heads, 1);
  EXPECT_EQ(tiling_of(p, make_plan(p, device("A100"))).packed_heads, 3);
  EXPECT_EQ(explain({p, info}).find("share a tile"), std::string::npos);
  const Workload work = workload_of(p);
  Tiling uncached = tiling_of(p, info);
  uncached.l2_bytes = 0;
  EXPECT_EQ(tiled_traffic(work, uncached).read,
            work.q_bytes() + 3 * (2.0 * 2 * 8 * 4096 * 128 * 2));

  p = dense(2, 32, 8, 16, 4096, 128);
  info = make_plan(p, hopper());
  EXPECT_EQ(tiling_of(p, info).packed_heads, 4);
  EXPECT_NE(explain({p, info}).find("4 heads share a tile"), std::string::npos);
  EXPECT_EQ(info.cost.bytes_read, work.q_bytes() / 24 * 32 + 2.0 * 2 * 8 * 4096 * 128 * 2);
}

// ---- The plan

TEST(HopperPlan, HasOneKernelForBothSoftmaxes) {
  for_random_plans([](const Problem& p, const DeviceInfo& device, const PlanInfo& info) {
    const PlanInfo safe =
        make_plan(changed(p, [](Problem& q) { q.softmax = Softmax::safe; }), device);
    ASSERT_EQ(safe.kernel, info.kernel);
    ASSERT_EQ(safe.workspace_bytes, info.workspace_bytes);
    ASSERT_EQ(safe.grid, info.grid);
    ASSERT_EQ(safe.tile_q, info.tile_q);
  });
}

TEST(HopperPlan, SaysHowTilesAreTakenAndWhichSoftmax) {
  Problem p = dense(4, 16, 16, 4096, 4096, 128);
  const auto words = [&] { return explain({p, make_plan(p, hopper())}); };
  EXPECT_NE(words().find("132 blocks of 12 warps"), std::string::npos) << words();
  EXPECT_NE(words().find("which take 2048 tiles of queries in turn"), std::string::npos) << words();
  for (const double softcap : {0.0, 1.0}) {
    p.softcap = softcap;
    p.softmax = Softmax::automatic;
    EXPECT_NE(words().find("an earlier great score"), std::string::npos);
    p.softmax = Softmax::safe;
    EXPECT_NE(words().find("so far (safe)"), std::string::npos);
  }
  p = packed(4, 16, 16, 40960, 40960, 128);
  EXPECT_NE(words().find("which take at most"), std::string::npos);
  p = dense(1, 2, 2, 128, 128, 128);
  EXPECT_EQ(words().find("in turn"), std::string::npos);
}

/// A launch whose addresses TMA cannot read runs sm80's kernel in the planned workspace.
TEST(HopperPlan, HasTheWorkspaceOfWhatRunsInItsPlace) {
  int seen = 0;
  for_random_plans([&](const Problem& p, const DeviceInfo& device, const PlanInfo& info) {
    if (info.backend != "sm90") return;
    ++seen;
    const PlanInfo other = plan_without_hopper(p, device);
    ASSERT_EQ(other.backend, "sm80");
    ASSERT_EQ(other.num_splits, 1);
    ASSERT_LE(other.workspace_bytes, info.workspace_bytes);
  });
  EXPECT_GT(seen, 100);
}

/// Tiles of equal length need no counter: a block knows its own beforehand.
TEST(HopperPlan, CountsTilesThatDifferInLength) {
  const Problem p = dense(4, 16, 16, 4096, 4096, 128);
  const auto workspace = [&](const std::function<void(Problem&)>& change) {
    const PlanInfo info = make_plan(changed(p, change), hopper());
    EXPECT_EQ(info.backend, "sm90");
    return info.workspace_bytes;
  };
  EXPECT_EQ(workspace([](Problem&) {}), 0U);
  EXPECT_EQ(workspace([](Problem& q) { q.has_sinks = true; }), 0U);
  EXPECT_EQ(workspace([](Problem& q) { q.window_right = 0; }), 256U);
  EXPECT_EQ(workspace([](Problem& q) { q.window_right = 50; }), 256U);
  EXPECT_EQ(workspace([](Problem& q) { q.window_left = 50; }), 256U);
  EXPECT_EQ(workspace([](Problem& q) { q.has_seqused_q = true; }), 256U);
  EXPECT_EQ(workspace([](Problem& q) { q.has_seqused_k = true; }), 256U);
  // 256 bytes more are where the tiles of each sequence begin.
  EXPECT_EQ(make_plan(packed(4, 16, 16, 40960, 40960, 128), hopper()).workspace_bytes, 512U);
  EXPECT_EQ(make_plan(packed(4, 2, 2, 300, 300, 128), hopper()).workspace_bytes, 256U);
  // A tile for each block, or none.
  EXPECT_EQ(workspace([](Problem& q) {
              q.window_right = 0;
              q.batch = 1;
              q.heads_q = q.heads_kv = 4;
              q.seqlen_q = q.total_q = 4096;
              q.total_k = 4096;
            }),
            0U);
}

}  // namespace
}  // namespace onchip::host
