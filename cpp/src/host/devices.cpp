// SPDX-License-Identifier: Apache-2.0
#include "host/devices.hpp"

#include <array>
#include <cctype>

#include "host/check.hpp"
#include "host/planner.hpp"

namespace onchip::host {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;
constexpr std::int64_t kGB = 1'000'000'000;
constexpr double kTera = 1e12;

// Datasheet figures, dense (no sparsity), float32 accumulation. float32 is the vector rate, since
// tf32 does not keep float32's precision; float64 is the tensor-core rate where there is one.
std::array<DeviceInfo, 6> known() {
  std::array<DeviceInfo, 6> devices = {{
      {"A100", DeviceType::cuda, -1, 80, 108, 163 * kKiB, 40 * kMiB, 80 * kGB, 2.039 * kTera,
       312 * kTera, 19.5 * kTera, 19.5 * kTera},
      {"L40S", DeviceType::cuda, -1, 89, 142, 99 * kKiB, 96 * kMiB, 48 * kGB, 0.864 * kTera,
       362 * kTera, 91.6 * kTera, 1.43 * kTera},
      {"RTX 4090", DeviceType::cuda, -1, 89, 128, 99 * kKiB, 72 * kMiB, 24 * kGB, 1.008 * kTera,
       165.2 * kTera, 82.6 * kTera, 1.29 * kTera},
      {"H100", DeviceType::cuda, -1, 90, 132, 227 * kKiB, 50 * kMiB, 80 * kGB, 3.35 * kTera,
       989 * kTera, 67 * kTera, 67 * kTera},
      {"H200", DeviceType::cuda, -1, 90, 132, 227 * kKiB, 50 * kMiB, 141 * kGB, 4.8 * kTera,
       989 * kTera, 67 * kTera, 67 * kTera},
      {"B200", DeviceType::cuda, -1, 100, 148, 227 * kKiB, 126 * kMiB, 180 * kGB, 8 * kTera,
       2250 * kTera, 75 * kTera, 37 * kTera},
  }};
  for (DeviceInfo& device : devices) device.family = newest_family(device.compute_capability);
  return devices;
}

const std::array<DeviceInfo, 6>& table() {
  static const std::array<DeviceInfo, 6> devices = known();
  return devices;
}

std::string folded(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const std::string_view word : {"nvidia", "geforce"}) {
    if (text.starts_with(word)) text.erase(0, word.size());
  }
  return text;
}

/// FLOP of one multiprocessor in one clock, of the same kinds as in the table.
struct Rates {
  double flops_16bit, flops_float32, flops_float64;
};

Rates rates_of(const DeviceInfo& device) {
  const std::int32_t capability = device.compute_capability;
  if (capability >= 100 && capability < 110) return {8192, 256, 128};
  if (capability == 90) return {4096, 256, 256};
  if (capability == 80) return {2048, 128, 128};
  // GeForce cards add 16-bit products in float32 at half of the rate.
  const bool geforce = device.name.find("GeForce") != std::string::npos;
  return {geforce ? 512.0 : 1024.0, 256, 4};
}

}  // namespace

const DeviceInfo* find_named_device(std::string_view name) {
  const std::string wanted = folded(name);
  for (const DeviceInfo& device : table()) {
    if (folded(device.name) == wanted) return &device;
  }
  return nullptr;
}

std::vector<std::string> named_devices() {
  std::vector<std::string> names;
  for (const DeviceInfo& device : table()) names.push_back(device.name);
  return names;
}

void fill_peaks(DeviceInfo& info, double hertz, double bandwidth) {
  if (const DeviceInfo* named = find_named_device(info.name)) {
    info.bandwidth = named->bandwidth;
    info.flops_16bit = named->flops_16bit;
    info.flops_float32 = named->flops_float32;
    info.flops_float64 = named->flops_float64;
    return;
  }
  const Rates rates = rates_of(info);
  const double clocks = hertz * info.units;
  info.bandwidth = bandwidth;
  info.flops_16bit = clocks * rates.flops_16bit;
  info.flops_float32 = clocks * rates.flops_float32;
  info.flops_float64 = clocks * rates.flops_float64;
}

void check_device(const Problem& problem, const PlanInfo& planned, const DeviceInfo& real) {
  const DeviceInfo& device = planned.device;
  const auto refuse_plan = [&](const std::string& what) {
    reject("plan", "was made for " + device.name + what + "; plan for the device that q lies on");
  };
  if (device.type != real.type) refuse_plan(", but q lies on " + real.name);
  if (device.type == DeviceType::cpu) return;
  if (device.index >= 0 && device.index != real.index) {
    refuse_plan(" (cuda:" + std::to_string(device.index) + "), but q lies on " + real.name +
                " (cuda:" + std::to_string(real.index) + ")");
  }
  const auto compare = [&](std::int64_t wanted, std::int64_t found, bool fits, const char* what) {
    if (fits) return;
    refuse_plan(std::string(" with ") + what + ' ' + std::to_string(wanted) + ", but " + real.name +
                " has " + std::to_string(found));
  };
  compare(device.compute_capability, real.compute_capability,
          device.compute_capability == real.compute_capability, "compute capability");
  compare(device.family, real.family, device.family <= real.family, "kernels of family");
  compare(device.units, real.units, device.units == real.units || !counts_units(problem),
          "a number of multiprocessors of");
  compare(planned.on_chip_bytes, real.on_chip_bytes, planned.on_chip_bytes <= real.on_chip_bytes,
          "bytes of shared memory");
}

}  // namespace onchip::host
