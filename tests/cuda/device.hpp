// SPDX-License-Identifier: Apache-2.0
// Problems of the C++ tests in device memory. CUDA errors are thrown as std::runtime_error.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fixture.hpp"

namespace device {

void check(cudaError_t status, const char* what);

/// Why there is no device to test on; empty where there is one.
const std::string& missing();

/// Device memory of exactly that size, so that memcheck sees the first byte behind it.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory& operator=(Memory&&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// A stream that does not wait for the default one.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t handle() const { return handle_; }
  [[nodiscard]] onchip::Stream view() const { return {handle_}; }
  void synchronize() const;

 private:
  cudaStream_t handle_ = nullptr;
};

/// A problem in host memory and its copy on the device: the whole stretch of each tensor, with what
/// lies between its elements, equally far off a multiple of 16 bytes.
class Mirror {
 public:
  explicit Mirror(const onchip::Attention& host, std::int32_t index = 0);

  onchip::Attention attention;  // on the device

  /// Inputs and outputs from the host.
  void upload() const;
  /// Outputs to the host.
  void download() const;

  /// Makes the inputs zeros, and queues copies of the right ones.
  void clear_inputs() const;
  void queue_inputs(const Stream& stream);

 private:
  struct Copy {
    std::byte* host;
    std::byte* device;
    std::size_t bytes;
    bool output;
  };
  void add(const onchip::TensorView& host, onchip::TensorView& view, std::int32_t index,
           bool output);

  std::vector<Memory> memory_;
  std::vector<Copy> copies_;
};

/// A plan with its workspace, which is full of NaN unless ONCHIP_TEST_RAW_WORKSPACE is set (for
/// initcheck, which must see it uninitialised).
class Launch {
 public:
  Launch(const onchip::Attention& attention, onchip::Pass pass);
  Launch(const onchip::Attention& attention, onchip::Pass pass, const onchip::DeviceInfo& device);
  void operator()(const onchip::Attention& attention, const Stream& stream) const;
  [[nodiscard]] const onchip::PlanInfo& info() const { return plan_.info(); }

 private:
  explicit Launch(onchip::Plan plan);
  onchip::Plan plan_;
  Memory workspace_;
};

/// A front for fixture::Problem::run_with: to the device, one pass, and back.
void call(const onchip::Attention& attention, onchip::Pass pass);

/// The same with a plan for `device`.
void call_for(const onchip::Attention& attention, onchip::Pass pass,
              const onchip::DeviceInfo& device);

/// Both passes through `call`.
void run(fixture::Problem& problem);

/// The bits of every result.
std::vector<std::vector<std::uint64_t>> bits(const onchip::Attention& attention);

/// The base of every test that needs a device.
template <class Base>
class Needs : public Base {
 protected:
  void SetUp() override {
    if (!missing().empty()) GTEST_SKIP() << missing();
  }
};

}  // namespace device
