// SPDX-License-Identifier: Apache-2.0
#include "case_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

namespace case_file {

using fixture::Layout;
using nlohmann::json;
using onchip::DType;
using onchip::Pass;
using onchip::TensorView;
using oracle::Tensor;

std::vector<std::filesystem::path> all() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(ONCHIP_CASES_DIR)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

json load(const std::filesystem::path& path) { return json::parse(std::ifstream(path)); }

Tensor tensor_of(const json& entry) {
  Tensor tensor(entry.at("shape").get<std::vector<std::int64_t>>());
  const json& data = entry.at("data");
  EXPECT_EQ(data.size(), tensor.values.size());
  std::transform(data.begin(), data.end(), tensor.values.begin(), [](const json& x) {
    return x.is_string() ? std::stod(x.get<std::string>()) : x.get<double>();
  });
  return tensor;
}

namespace {

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

void expect_within(const std::string& name, const Tensor& got, const Tensor& exact,
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

}  // namespace

Case::Case(const json& file, DType dtype) : rng_(1), expect_(file.at("expect")) {
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

void Case::expect_right(const oracle::Results& got, double tolerance) const {
  const onchip::Attention& a = problem.attention;
  const DType dtype = a.q.dtype;
  const std::map<std::string, Tensor oracle::Results::*> names{
      {"out", &oracle::Results::out},      {"lse", &oracle::Results::lse},
      {"dq", &oracle::Results::dq},        {"dk", &oracle::Results::dk},
      {"dv", &oracle::Results::dv},        {"dbias", &oracle::Results::dbias},
      {"dsinks", &oracle::Results::dsinks}};
  const bool narrow = dtype == DType::float16 || dtype == DType::bfloat16;
  const Pass pass = backward ? Pass::backward : Pass::forward;
  oracle::Results reference;
  oracle::Results naive;
  if (narrow) {
    reference = oracle::attention(a, pass);
    naive = fixture::yardstick(a, pass, reference, got);
  }
  for (const auto& [name, entry] : expect_.items()) {
    const Tensor exact = tensor_of(entry);
    const Tensor& have = got.*names.at(name);
    if (name == "lse" && narrow) {
      fixture::expect_close_lse(name, dtype, have, exact);
    } else if (narrow) {
      const bool sum = name == "dbias" || name == "dsinks";
      fixture::expect_close(name, dtype, have, exact, naive.*names.at(name),
                            sum ? fixture::slack_of_sums(dtype, reference) : 1e-5);
    } else {
      expect_within(name, have, exact, tolerance);
    }
  }
}

}  // namespace case_file
