// SPDX-License-Identifier: Apache-2.0
// Every file of tests/cases through the C++ API and the C ABI, in every dtype; and the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "c_front.hpp"
#include "fixture.hpp"

namespace {

using fixture::Layout;
using fixture::Problem;
using nlohmann::json;
using onchip::DType;
using onchip::Pass;
using onchip::TensorView;
using oracle::Tensor;

enum class Front { reference, cpp, c };

std::vector<std::filesystem::path> case_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(ONCHIP_CASES_DIR)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Numbers, with "nan", "inf" and "-inf" as strings.
Tensor tensor_of(const json& entry) {
  Tensor tensor(entry.at("shape").get<std::vector<std::int64_t>>());
  const json& data = entry.at("data");
  EXPECT_EQ(data.size(), tensor.values.size());
  std::transform(data.begin(), data.end(), tensor.values.begin(), [](const json& x) {
    return x.is_string() ? std::stod(x.get<std::string>()) : x.get<double>();
  });
  return tensor;
}

onchip::Options options_of(const json& given) {
  onchip::Options options;
  for (const auto& [name, value] : given.items()) {
    if (name == "causal") {
      options.causal = value.get<bool>();
    } else if (name == "window") {
      options.window_left = value.at(0).get<std::int64_t>();
      options.window_right = value.at(1).get<std::int64_t>();
    } else if (name == "softcap") {
      options.softcap = value.get<double>();
    } else if (name == "scale") {
      options.scale = value.get<double>();
    } else {
      ADD_FAILURE() << "unknown option " << name;
    }
  }
  return options;
}

class Case {
 public:
  Case(const json& file, DType dtype) : rng_(1), expect_(file.at("expect")) {
    onchip::Attention& a = problem.attention;
    const json& inputs = file.at("inputs");
    const DType statistics = dtype == DType::float64 ? DType::float64 : DType::float32;
    const std::map<std::string, std::pair<TensorView*, DType>> names{
        {"q", {&a.q, dtype}},
        {"k", {&a.k, dtype}},
        {"v", {&a.v, dtype}},
        {"k_cache", {&a.k, dtype}},
        {"v_cache", {&a.v, dtype}},
        {"bias", {&a.bias, dtype}},
        {"dout", {&a.dout, dtype}},
        {"dlse", {&a.dlse, statistics}},
        {"alibi_slopes", {&a.alibi_slopes, statistics}},
        {"sinks", {&a.sinks, statistics}},
        {"cu_seqlens_q", {&a.cu_seqlens_q, DType::int32}},
        {"cu_seqlens_k", {&a.cu_seqlens_k, DType::int32}},
        {"seqused_q", {&a.seqused_q, DType::int32}},
        {"seqused_k", {&a.seqused_k, DType::int32}},
        {"seqlens_k", {&a.seqused_k, DType::int32}},
        {"block_table", {&a.block_table, DType::int32}}};
    for (const auto& [name, entry] : inputs.items()) {
      const auto& [view, type] = names.at(name);
      const Tensor tensor = tensor_of(entry);
      *view = problem.add(type, tensor.shape, Layout::dense, rng_);
      oracle::write(*view, tensor);
    }
    a.options = options_of(file.at("options"));
    backward = inputs.contains("dout");
    const auto output = [&](const char* name, DType type) -> TensorView {
      if (!expect_.contains(name)) return {};
      return problem.add_output(type, tensor_of(expect_.at(name)).shape, Layout::dense, rng_);
    };
    a.out = output("out", dtype);
    a.lse = output("lse", statistics);
    a.dq = output("dq", dtype);
    a.dk = output("dk", dtype);
    a.dv = output("dv", dtype);
    a.dbias = output("dbias", dtype);
    a.dsinks = output("dsinks", statistics);
  }

  Problem problem;
  bool backward = false;

  /// The results under the names of the file, and how near to its answers they must be.
  void expect_right(const oracle::Results& got, double tolerance) const {
    const onchip::Attention& a = problem.attention;
    const DType dtype = a.q.dtype;
    const std::map<std::string, Tensor oracle::Results::*> names{
        {"out", &oracle::Results::out},      {"lse", &oracle::Results::lse},
        {"dq", &oracle::Results::dq},        {"dk", &oracle::Results::dk},
        {"dv", &oracle::Results::dv},        {"dbias", &oracle::Results::dbias},
        {"dsinks", &oracle::Results::dsinks}};
    const bool narrow = dtype == DType::float16 || dtype == DType::bfloat16;
    const Pass pass = backward ? Pass::backward : Pass::forward;
    const oracle::Results naive = narrow ? oracle::attention(a, pass, dtype) : oracle::Results{};
    for (const auto& [name, entry] : expect_.items()) {
      const Tensor exact = tensor_of(entry);
      const Tensor& have = got.*names.at(name);
      if (name == "lse" && narrow) {
        fixture::expect_close_lse(name, dtype, have, exact);
      } else if (narrow) {
        fixture::expect_close(name, dtype, have, exact, naive.*names.at(name));
      } else {
        expect_within(name, have, exact, tolerance);
      }
    }
  }

 private:
  static void expect_within(const std::string& name, const Tensor& got, const Tensor& exact,
                            double tolerance) {
    ASSERT_EQ(got.shape, exact.shape) << name;
    for (std::size_t at = 0; at < exact.values.size(); ++at) {
      const double want = exact.values[at];
      if (std::isfinite(want)) {
        ASSERT_NEAR(got.values[at], want, tolerance * std::max(1.0, std::abs(want)))
            << name << "[" << at << "]";
      } else {
        ASSERT_EQ(got.values[at], want) << name << "[" << at << "]";
      }
    }
  }

  fixture::Rng rng_;
  json expect_;
};

/// The mask of rule 6: exact, whatever the front end.
void check_dropout_mask(const json& file, Front front) {
  const json& options = file.at("options");
  const auto shape = options.at("shape").get<std::vector<std::int64_t>>();
  const Tensor expect = tensor_of(file.at("expect").at("keep"));
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
  const json file = json::parse(std::ifstream(path));
  if (file.at("op") == "dropout_mask") {
    check_dropout_mask(file, front);
    return;
  }
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    SCOPED_TRACE(onchip::name_of(dtype));
    Case x(file, dtype);
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
                         ::testing::Combine(::testing::ValuesIn(case_files()),
                                            ::testing::Values(Front::reference, Front::cpp,
                                                              Front::c)),
                         name_of_case);

TEST(CaseFiles, AreThere) { EXPECT_FALSE(case_files().empty()); }

}  // namespace
