// SPDX-License-Identifier: Apache-2.0
#include "cpu/device.hpp"

#include <sched.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "hwy/targets.h"
#include "onchip/threads.hpp"

namespace onchip::cpu {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The number that `text` begins with, else `fallback` ("max" of a cgroup, an empty file).
template <class T>
T number(std::string_view text, T fallback) {
  T value = fallback;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// CPUs in a kernel list such as "0-3,8".
std::int64_t count_cpu_list(std::string_view list) {
  std::int64_t count = 0;
  while (!list.empty()) {
    const std::string_view range = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), range.size() + 1));
    const auto first = number<std::int64_t>(range, 0);
    const std::size_t dash = range.find('-');
    const auto last =
        dash == range.npos ? first : number<std::int64_t>(range.substr(dash + 1), first);
    count += last - first + 1;
  }
  return std::max<std::int64_t>(count, 1);
}

struct CpuInfo {
  std::string model;
  double hertz = 2.5e9;         // where the kernel tells no clock
  bool half_width_512 = false;  // executes a 512-bit instruction as two halves
};

CpuInfo read_cpuinfo() {
  CpuInfo info;
  bool amd = false;
  std::int32_t family = 0;
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.empty()) {  // the first CPU only
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::string value = line.substr(std::min(colon + 2, line.size()));
    const std::string key = line.substr(0, line.find_last_not_of("\t ", colon - 1) + 1);
    if (key == "model name") info.model = value;
    if (key == "vendor_id") amd = value == "AuthenticAMD";
    if (key == "cpu family") family = number<std::int32_t>(value, 0);
    if (key == "cpu MHz") info.hertz = number<double>(value, 2500.0) * 1e6;
  }
  const auto kilohertz =
      number<double>(first_line("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"), 0.0);
  if (kilohertz > 0) info.hertz = kilohertz * 1e3;
  info.half_width_512 = amd && family < 0x1A;  // Zen 4; Zen 5 is family 1Ah
  return info;
}

struct Caches {
  std::int64_t l2_per_core = std::int64_t{1} << 20;  // where sysfs tells nothing
  std::int64_t last_level = std::int64_t{8} << 20;
};

Caches read_caches() {
  Caches caches;
  std::int64_t threads_per_core = 1;
  std::int64_t deepest = 1;
  for (int index = 0;; ++index) {
    const std::string at = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::string size = first_line(at + "size");
    if (size.empty()) return caches;
    const auto level = number<std::int64_t>(first_line(at + "level"), 0);
    const std::int64_t bytes = number<std::int64_t>(size, 0) << (size.back() == 'M'   ? 20
                                                                 : size.back() == 'K' ? 10
                                                                                      : 0);
    const std::int64_t sharers = count_cpu_list(first_line(at + "shared_cpu_list"));
    if (level == 1) threads_per_core = sharers;
    if (level == 2) caches.l2_per_core = bytes * std::min(threads_per_core, sharers) / sharers;
    if (level > deepest) {
      deepest = level;
      caches.last_level = bytes;
    }
  }
}

/// CPUs' worth of time that a cgroup grants, rounded up; 0 where it sets no limit. Its own group,
/// then what a container sees as the root, in version 2 and then 1.
std::int32_t quota_cpus() {
  std::string group;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  for (const std::string& path : {group, std::string()}) {
    const std::string limit = first_line("/sys/fs/cgroup" + path + "/cpu.max");
    const auto quota = number<double>(limit, 0.0);
    const std::size_t space = limit.find(' ');
    if (quota <= 0 || space == std::string::npos) continue;
    const auto period = number<double>(std::string_view(limit).substr(space + 1), 1e5);
    return static_cast<std::int32_t>((quota + period - 1) / period);
  }
  const auto quota = number<double>(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), 0.0);
  const auto period = number<double>(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us"), 1e5);
  return quota > 0 ? static_cast<std::int32_t>((quota + period - 1) / period) : 0;
}

std::int64_t best_target() {
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets & -targets;  // Highway gives better targets lower bits
}

double vector_bytes(std::int64_t target, const CpuInfo& info) {
  const std::string_view name = hwy::TargetName(target);
  if (name.starts_with("AVX3")) return info.half_width_512 ? 32 : 64;
  if (name == "AVX2" || name == "SVE_256") return 32;
  return 16;
}

/// The rates are estimates good enough to compare plans, not to judge a kernel by:
/// FLOP = clock x lanes x 2 (an FMA) x 2 (FMA units of a core) x CPUs, the clock being the maximum
/// where cpufreq tells it; bytes = 4 a clock and CPU, which many cores cannot draw beyond 200 GB/s.
/// 16-bit types are computed in float32.
DeviceInfo read_device() {
  const CpuInfo info = read_cpuinfo();
  const Caches caches = read_caches();
  const auto cpus = static_cast<double>(available_cpus());
  DeviceInfo device;
  const std::string isa = cpu_isa();
  device.name = info.model.empty() ? isa : info.model + " (" + isa + ")";
  device.type = DeviceType::cpu;
  device.on_chip_bytes = caches.l2_per_core;
  device.l2_bytes = caches.last_level;
  device.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  device.bandwidth = std::min(4 * info.hertz * cpus, 200e9);
  device.flops_float32 = info.hertz * vector_bytes(best_target(), info) / 4 * 2 * 2 * cpus;
  device.flops_16bit = device.flops_float32;
  device.flops_float64 = device.flops_float32 / 2;
  return device;
}

bool disable_targets_above(const char* cap) {
  if (strcasecmp(cap, "avx512") == 0) cap = "avx3";
  for (std::int64_t targets = HWY_TARGETS; targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    if (strcasecmp(cap, hwy::TargetName(target)) != 0) continue;
    hwy::DisableTargets(target - 1);
    return true;
  }
  return false;
}

}  // namespace

const DeviceInfo& cpu_device() {
  static const DeviceInfo device = read_device();
  return device;
}

std::int32_t available_cpus() {
  std::int32_t cpus = static_cast<std::int32_t>(std::thread::hardware_concurrency());
#if defined(__linux__)
  // The main thread's mask: a caller may be pinned to one CPU for reasons of its own.
  cpu_set_t mask;
  if (sched_getaffinity(getpid(), sizeof(mask), &mask) == 0) cpus = CPU_COUNT(&mask);
#endif
  const std::int32_t quota = quota_cpus();
  if (quota > 0) cpus = std::min(cpus, quota);
  return std::max(cpus, 1);
}

void apply_isa_cap() {
  static const bool capped = [] {
    const char* cap = std::getenv("ONCHIP_CPU_ISA");
    return cap != nullptr && disable_targets_above(cap);
  }();
  static_cast<void>(capped);
}

}  // namespace onchip::cpu

namespace onchip {

const char* cpu_isa() {
  cpu::apply_isa_cap();
  return hwy::TargetName(cpu::best_target());
}

}  // namespace onchip
