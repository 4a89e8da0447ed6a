// SPDX-License-Identifier: Apache-2.0
#include "onchip/plan.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "host/backend.hpp"
#include "host/devices.hpp"
#include "host/plan_impl.hpp"
#include "onchip/status.hpp"
#include "onchip/threads.hpp"

namespace onchip {

const PlanInfo& Plan::info() const { return impl_->info; }
std::string Plan::explain() const { return host::explain(*impl_); }
std::string Plan::json() const { return host::to_json(*impl_); }

std::vector<std::string> known_devices() { return host::named_devices(); }

DeviceInfo device_info(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "cpu") {
    DeviceInfo info = host::backend_for(DeviceType::cpu).device(0);
    info.units = num_threads();
    return info;
  }
  if (lower == "cuda") return host::backend_for(DeviceType::cuda, "device").device(0);
  if (lower.starts_with("cuda:")) {
    std::int32_t index = 0;
    const char* end = lower.data() + lower.size();
    const auto [stop, fault] = std::from_chars(lower.data() + 5, end, index);
    if (fault == std::errc() && stop == end) {
      return host::backend_for(DeviceType::cuda, "device").device(index);
    }
  }
  if (const DeviceInfo* named = host::find_named_device(name)) return *named;
  std::string known = "cpu, cuda:<index>";
  for (const std::string& device : known_devices()) known += ", " + device;
  throw Error(ErrorCode::invalid_argument,
              "device: \"" + std::string(name) + "\" is not known, expected one of " + known);
}

}  // namespace onchip
