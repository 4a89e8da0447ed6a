// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "host/problem.hpp"
#include "onchip/plan.hpp"

namespace onchip::detail {

/// A plan's whole state: the question and the decisions.
struct PlanImpl {
  host::Problem problem;
  PlanInfo info;
};

}  // namespace onchip::detail

namespace onchip::host {

/// The planner: pure, no device call. The tile tables are in tiles.hpp.
PlanInfo make_plan(const Problem& problem, const DeviceInfo& device);

/// Words and a picture for Plan::explain(), and JSON for Plan::json().
std::string explain(const detail::PlanImpl& plan);
std::string to_json(const detail::PlanImpl& plan);

}  // namespace onchip::host
