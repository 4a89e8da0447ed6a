// SPDX-License-Identifier: Apache-2.0
// Plans in words, as a picture and as JSON.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "host/plan_impl.hpp"
#include "planner_scene.hpp"

namespace onchip::host {
namespace {

using nlohmann::json;

TEST(Json, ParsesAndAgreesWithThePlan) {
  for_random_plans([](const Problem& p, const DeviceInfo& d, const PlanInfo& info) {
    const json j = json::parse(to_json({p, info}));
    ASSERT_EQ(j.at("pass"), p.pass == Pass::forward ? "forward" : "backward");
    ASSERT_EQ(j.at("backend"), info.backend);
    ASSERT_EQ(j.at("kernel"), info.kernel);
    ASSERT_EQ(j.at("tile_q"), info.tile_q);
    ASSERT_EQ(j.at("tile_k"), info.tile_k);
    ASSERT_EQ(j.at("stages"), info.stages);
    ASSERT_EQ(j.at("warps"), info.warps);
    ASSERT_EQ(j.at("on_chip_bytes"), info.on_chip_bytes);
    ASSERT_EQ(j.at("grid"), info.grid);
    ASSERT_EQ(j.at("num_splits"), info.num_splits);
    ASSERT_EQ(j.at("split_size"), info.split_size);
    ASSERT_EQ(j.at("threads"), info.threads);
    ASSERT_EQ(j.at("workspace_bytes"), info.workspace_bytes);
    ASSERT_EQ(j.at("device").at("name"), d.name);
    ASSERT_EQ(j.at("device").at("bandwidth"), d.bandwidth);
    ASSERT_EQ(j.at("cost").at("flops"), info.cost.flops);
    ASSERT_EQ(j.at("cost").at("seconds"), info.cost.seconds);
    ASSERT_EQ(j.at("cost").at("compute_bound"), info.cost.compute_bound);
    ASSERT_EQ(j.at("standard").at("bytes_read"), info.standard.bytes_read);
    ASSERT_EQ(j.at("standard").at("peak_bytes"), info.standard.peak_bytes);
  });
}

TEST(Json, EscapesNamesAndHasNoInfinity) {
  DeviceInfo odd = device("H200");
  odd.name = "a \"quoted\" \\ name\n\x01 of \xc3\xa9";
  odd.bandwidth = INFINITY;
  const Problem p = dense(1, 1, 1, 64, 64, 64);
  const json j = json::parse(to_json({p, make_plan(p, odd)}));
  EXPECT_EQ(j.at("device").at("name"), odd.name);
  EXPECT_TRUE(j.at("device").at("bandwidth").is_null());
}

TEST(Explain, DrawsTheTilesOfOneHead) {
  Problem p = dense(1, 1, 1, 512, 512, 64);
  p.window_right = 0;
  // Tiles of 128 x 128: the upper right corner of the tile two below the diagonal is 129 keys back.
  p.window_left = 129;
  const std::string wide = explain({p, make_plan(p, device("A100"))});
  EXPECT_NE(wide.find("\n  /...\n  //..\n  ///.\n  .///\n"), std::string::npos) << wide;
  p.window_left = 128;
  const std::string narrow = explain({p, make_plan(p, device("A100"))});
  EXPECT_NE(narrow.find("\n  /...\n  //..\n  .//.\n  ..//\n"), std::string::npos) << narrow;
  // And 127 ahead ends with the diagonal tile, 129 reaches the second one after it.
  p.window_left = 0;
  p.window_right = 127;
  const std::string ahead = explain({p, make_plan(p, device("A100"))});
  EXPECT_NE(ahead.find("\n  //..\n  .//.\n  ..//\n  .../\n"), std::string::npos) << ahead;
  p.window_left = -1;
  const std::string whole = explain({p, make_plan(p, device("A100"))});
  EXPECT_NE(whole.find("\n  #/..\n  ##/.\n  ###/\n  ####\n"), std::string::npos) << whole;
  p.window_right = 129;
  const std::string far = explain({p, make_plan(p, device("A100"))});
  EXPECT_NE(far.find("\n  #//.\n  ##//\n  ###/\n  ####\n"), std::string::npos) << far;
  p.window_right = 0;
  p.window_left = -1;
  const std::string causal = explain({p, make_plan(p, device("A100"))});
  EXPECT_NE(causal.find("\n  /...\n  #/..\n  ##/.\n  ###/\n62.5% of the tiles are visited, 50.1% "
                        "of the scores are visible.\n"),
            std::string::npos)
      << causal;
}

TEST(Explain, ShowsTheBudgetAsASum) {
  const Problem p = dense(1, 1, 1, 512, 512, 128);
  const std::string text = explain({p, make_plan(p, device("RTX 4090"))});
  EXPECT_NE(text.find("On chip   Q 32 KiB + K 2 x 16 KiB + V 2 x 16 KiB\n"
                      "          = 96 KiB of the 99 KiB a block may have\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("its ridge is at 164 FLOP a byte"), std::string::npos) << text;
}

TEST(Explain, SaysThatFloat32KeepsNothingOnChip) {
  const Problem p = dense(1, 1, 1, 512, 512, 128, DType::float32);
  const std::string text = explain({p, make_plan(p, device("A100"))});
  EXPECT_NE(text.find("Tile      8 queries x 1 key\nOn chip   nothing: "), std::string::npos)
      << text;
  EXPECT_EQ(text.find("= 0 B"), std::string::npos) << text;
}

TEST(Explain, StaysSmallAndWellFormedForAnyPlan) {
  for_random_plans([](const Problem& p, const DeviceInfo&, const PlanInfo& info) {
    const std::string text = explain({p, info});
    ASSERT_NE(text.find(info.kernel), std::string::npos);
    ASSERT_EQ(text.find("nan"), std::string::npos) << text;
    ASSERT_EQ(text.find("inf"), std::string::npos) << text;
    std::size_t start = 0, lines = 0;
    for (std::size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
      ASSERT_LE(end - start, 100U) << text.substr(start, end - start);
      ++lines;
    }
    ASSERT_EQ(start, text.size()) << "ends with a newline";
    ASSERT_LE(lines, 70U);
  });
}

TEST(Explain, SaysWhyHopperRunsTheKernelsOfAmpere) {
  const std::string says = "those of Hopper have no ";
  const auto lacks = [&](const Problem& p, const char* what) {
    const std::string text = explain({p, make_plan(p, device("H200"))});
    EXPECT_NE(text.find("kernel sm80_"), std::string::npos) << text;
    EXPECT_NE(text.find(says + what), std::string::npos) << text;
  };
  Problem p = dense(4, 32, 32, 512, 512, 128);
  EXPECT_EQ(explain({p, make_plan(p, device("H200"))}).find(says), std::string::npos);
  lacks(backward_of(p), "a backward pass");
  p.q.row += 1;
  lacks(p, "such strides");
  p = dense(1, 1, 1, 1, 65536, 128);
  p.num_splits = 4;
  lacks(p, "splits");
  p.num_splits = 1;
  EXPECT_EQ(explain({p, make_plan(p, device("A100"))}).find(says), std::string::npos);
  DeviceInfo older = device("H200");  // a build without the kernels of Hopper
  older.family = 80;
  EXPECT_NE(explain({p, make_plan(p, older)}).find("the device's family is 80"), std::string::npos);
  // float32 is no business of the tensor cores on any GPU.
  const Problem single = dense(1, 1, 1, 512, 512, 128, DType::float32);
  EXPECT_EQ(explain({single, make_plan(single, device("H200"))}).find(says), std::string::npos);
}

}  // namespace
}  // namespace onchip::host
