// SPDX-License-Identifier: Apache-2.0
// Reads tests/cases/*.json: problems with their right answers.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fixture.hpp"

namespace case_file {

/// Every file, in order.
std::vector<std::filesystem::path> all();

nlohmann::json load(const std::filesystem::path& path);

/// Numbers, with "nan", "inf" and "-inf" as strings.
oracle::Tensor tensor_of(const nlohmann::json& entry);

/// A file's problem, in `dtype`, with poisoned outputs where the file has answers.
class Case {
 public:
  Case(const nlohmann::json& file, onchip::DType dtype);

  fixture::Problem problem;
  bool backward = false;

  /// The results under the names of the file, and how near to its answers they must be.
  void expect_right(const oracle::Results& got, double tolerance) const;

 private:
  fixture::Rng rng_;
  nlohmann::json expect_;
};

}  // namespace case_file
