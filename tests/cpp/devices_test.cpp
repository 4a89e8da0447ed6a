// SPDX-License-Identifier: Apache-2.0
// Named devices, and plans against the device that they are launched on.
#include "host/devices.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "planner_scene.hpp"

namespace onchip::host {
namespace {

TEST(NamedDevices, AreFoundHoweverTheyAreWritten) {
  EXPECT_EQ(named_devices(),
            (std::vector<std::string>{"A100", "L40S", "RTX 4090", "H100", "H200", "B200"}));
  for (const char* name :
       {"RTX 4090", "rtx4090", "rtx-4090", "Rtx_4090", "NVIDIA GeForce RTX 4090"}) {
    ASSERT_NE(find_named_device(name), nullptr) << name;
    EXPECT_EQ(find_named_device(name)->name, "RTX 4090");
  }
  for (const char* name : {"", "H", "H2000", "GTX 4090", "cpu"}) {
    EXPECT_EQ(find_named_device(name), nullptr) << name;
  }
}

TEST(NamedDevices, HaveEveryFact) {
  for (const std::string& name : named_devices()) {
    const DeviceInfo& d = device(name);
    EXPECT_EQ(d.type, DeviceType::cuda) << name;
    EXPECT_GE(d.compute_capability, 80) << name;
    EXPECT_GT(d.units, 100) << name;
    EXPECT_GT(d.l2_bytes, d.on_chip_bytes * 100) << name;
    EXPECT_GT(d.memory_bytes, d.l2_bytes * 100) << name;
    EXPECT_GT(d.bandwidth, 8e11) << name;
    EXPECT_GT(d.flops_16bit, d.flops_float32) << name;
    EXPECT_GE(d.flops_float32, d.flops_float64) << name;
    EXPECT_GT(d.flops_float64, 1e12) << name;
  }
  EXPECT_EQ(device("A100").on_chip_bytes, 166912);
  EXPECT_EQ(device("L40S").on_chip_bytes, 101376);
  EXPECT_EQ(device("H200").on_chip_bytes, 232448);
}

TEST(NamedDevices, AreNoneOfThisMachineAndPlanForKernelsThatThereAre) {
  for (const std::string& name : named_devices()) {
    EXPECT_EQ(device(name).index, -1) << name;
    EXPECT_EQ(device(name).family, device(name).compute_capability == 90 ? 90 : 80) << name;
  }
}

// Clocks at which the datasheets' figures hold, or nearly: H100 and H200 have two.
TEST(Peaks, ReckonedFromTheClockAreNearTheDatasheet) {
  const std::vector<std::pair<std::string, double>> clocks = {
      {"A100", 1.41e9}, {"L40S", 2.52e9}, {"RTX 4090", 2.52e9},
      {"H100", 1.83e9}, {"H200", 1.83e9}, {"B200", 1.9e9}};
  ASSERT_EQ(clocks.size(), named_devices().size());
  for (const auto& [name, hertz] : clocks) {
    const DeviceInfo& known = device(name);
    DeviceInfo other = known;
    other.name = name == "RTX 4090" ? "NVIDIA GeForce of another name" : "another name";
    fill_peaks(other, hertz, 1e12);
    EXPECT_EQ(other.bandwidth, 1e12);
    EXPECT_NEAR(other.flops_16bit / known.flops_16bit, 1, 0.1) << name;
    EXPECT_NEAR(other.flops_float32 / known.flops_float32, 1, 0.1) << name;
    EXPECT_NEAR(other.flops_float64 / known.flops_float64, 1, 0.1) << name;
  }
}

TEST(Peaks, AreThoseOfTheDatasheetWhereItIsKnown) {
  DeviceInfo real = device("H200");
  real.name = "NVIDIA H200";
  real.bandwidth = real.flops_16bit = real.flops_float32 = real.flops_float64 = 0;
  fill_peaks(real, 1.98e9, 5e12);
  EXPECT_EQ(real.bandwidth, device("H200").bandwidth);
  EXPECT_EQ(real.flops_16bit, device("H200").flops_16bit);
  EXPECT_EQ(real.flops_float32, device("H200").flops_float32);
  EXPECT_EQ(real.flops_float64, device("H200").flops_float64);
}

/// What a driver would tell of an H200.
DeviceInfo real_h200() {
  DeviceInfo real = device("H200");
  real.name = "NVIDIA H200";
  real.index = 1;
  return real;
}

std::string launch_error(const Problem& p, const DeviceInfo& planned, const DeviceInfo& real) {
  try {
    check_device(p, make_plan(p, planned), real);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(PlannedDevice, ANamedOneRunsOnARealOne) {
  const Problem p = dense(2, 16, 16, 1024, 1024, 128);
  EXPECT_EQ(launch_error(p, device("H200"), real_h200()), "");
  EXPECT_EQ(launch_error(backward_of(p), device("H200"), real_h200()), "");
  EXPECT_EQ(launch_error(p, real_h200(), real_h200()), "");
  // Planned alike, whatever else the two differ in.
  EXPECT_EQ(launch_error(p, device("H100"), real_h200()), "");
  EXPECT_EQ(launch_error(p, some_cpu(), some_cpu()), "");
}

TEST(PlannedDevice, IsRefusedWhereItDiffers) {
  const Problem p = dense(2, 16, 16, 1024, 1024, 128);
  EXPECT_EQ(launch_error(p, device("A100"), real_h200()),
            "plan: was made for A100 with compute capability 80, but NVIDIA H200 has 90; plan for "
            "the device that q lies on");
  DeviceInfo older = real_h200();  // a build without the kernels of Hopper
  older.family = 80;
  EXPECT_EQ(launch_error(p, hopper(), older),
            "plan: was made for H200 with kernels of family 90, but NVIDIA H200 has 80; plan for "
            "the device that q lies on");
  EXPECT_EQ(launch_error(p, device("H200"), some_cpu()),
            "plan: was made for H200, but q lies on AVX2; plan for the device that q lies on");
  DeviceInfo first = real_h200();
  first.index = 0;
  EXPECT_EQ(launch_error(p, first, real_h200()),
            "plan: was made for NVIDIA H200 (cuda:0), but q lies on NVIDIA H200 (cuda:1); plan for "
            "the device that q lies on");
  DeviceInfo less = real_h200();
  less.on_chip_bytes = 1024;
  EXPECT_NE(launch_error(p, device("H200"), less).find("bytes of shared memory 214016"),
            std::string::npos);
}

TEST(PlannedDevice, CountsMultiprocessorsOnlyWhereThePlanDid) {
  DeviceInfo slice = real_h200();
  slice.units = 60;
  Problem p = dense(1, 32, 8, 1, 65536, 128);
  EXPECT_EQ(launch_error(p, device("H200"), slice), "");
  p.num_splits = 4;
  EXPECT_EQ(launch_error(p, device("H200"), slice), "");
  p.num_splits = 0;  // the planner fills the device
  EXPECT_EQ(launch_error(p, device("H200"), slice),
            "plan: was made for H200 with a number of multiprocessors of 132, but NVIDIA H200 has "
            "60; plan for the device that q lies on");
  p.split_size = 4096;
  EXPECT_EQ(launch_error(p, device("H200"), slice), "");
  p.split_size = 0;
  p.window_left = 100;  // leaves one part whatever the device
  EXPECT_EQ(launch_error(p, device("H200"), slice), "");
  p = dense(2, 16, 16, 1024, 1024, 128);  // blocks that take tile after tile fit any number
  EXPECT_EQ(launch_error(p, hopper(), slice), "");
}

}  // namespace
}  // namespace onchip::host
