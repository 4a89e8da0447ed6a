// SPDX-License-Identifier: Apache-2.0
// Every file of tests/cases through the C++ API and the C ABI, in every dtype; and the reference.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>

#include "c_front.hpp"
#include "case_file.hpp"

namespace {

using fixture::Layout;
using nlohmann::json;
using onchip::DType;
using onchip::Pass;
using oracle::Tensor;

enum class Front { reference, cpp, c };

/// The mask of rule 6: exact, whatever the front end.
void check_dropout_mask(const json& file, Front front) {
  const json& options = file.at("options");
  const auto shape = options.at("shape").get<std::vector<std::int64_t>>();
  const Tensor expect = case_file::tensor_of(file.at("expect").at("keep"));
  onchip::Options dropout;
  dropout.dropout_p = options.at("p").get<double>();
  dropout.seed = options.at("seed").get<std::uint64_t>();
  dropout.offset = options.at("offset").get<std::uint64_t>();
  fixture::Rng rng(1);
  fixture::Buffer mask(DType::uint8, shape, Layout::dense, rng);
  mask.poison();
  if (front == Front::cpp) {
    onchip::dropout_mask(mask.view(), dropout.dropout_p, dropout.seed, dropout.offset, {});
  } else if (front == Front::c) {
    c_front::dropout_mask(mask.view(), dropout.dropout_p, dropout.seed, dropout.offset);
  } else {
    fixture::set_where(
        mask.view(),
        [&](std::span<const std::int64_t> at) {
          return oracle::kept(dropout, at[0] * shape[1] + at[1], at[2], at[3]);
        },
        1);
    fixture::set_where(
        mask.view(),
        [&](std::span<const std::int64_t> at) {
          return !oracle::kept(dropout, at[0] * shape[1] + at[1], at[2], at[3]);
        },
        0);
  }
  EXPECT_EQ(oracle::read(mask.view()).values, expect.values);
}

class Cases : public ::testing::TestWithParam<std::tuple<std::filesystem::path, Front>> {};

TEST_P(Cases, AreRight) {
  const auto& [path, front] = GetParam();
  const json file = case_file::load(path);
  if (file.at("op") == "dropout_mask") {
    check_dropout_mask(file, front);
    return;
  }
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    SCOPED_TRACE(onchip::name_of(dtype));
    case_file::Case x(file, dtype);
    if (front == Front::reference) {
      if (dtype != DType::float64) continue;
      const Pass pass = x.backward ? Pass::backward : Pass::forward;
      x.expect_right(oracle::attention(x.problem.attention, pass), 1e-7);
      continue;
    }
    x.problem.run_with(front == Front::cpp ? fixture::call : c_front::call, Pass::forward);
    if (x.backward) {
      x.problem.run_with(front == Front::cpp ? fixture::call : c_front::call, Pass::backward);
    }
    // The answers are float64 results rounded to float32.
    const double float32 = file.at("tolerance_float32").get<double>();
    x.expect_right(x.problem.results(), dtype == DType::float64 ? 1e-7 : float32);
    EXPECT_TRUE(x.problem.guards_intact());
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Cases::ParamType>& info) {
  constexpr std::array<const char*, 3> kFronts{"reference", "cpp", "c"};
  return std::get<0>(info.param).stem().string() + "_" +
         kFronts[static_cast<std::size_t>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Cases, Cases,
                         ::testing::Combine(::testing::ValuesIn(case_file::all()),
                                            ::testing::Values(Front::reference, Front::cpp,
                                                              Front::c)),
                         name_of_case);

TEST(CaseFiles, AreThere) { EXPECT_FALSE(case_file::all().empty()); }

}  // namespace
