// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "onchip/plan.hpp"

namespace device {

using onchip::Attention;
using onchip::Pass;
using onchip::TensorView;

namespace {

constexpr std::size_t kAligned = 16;  // what the kernels tell apart

constexpr std::array kInputs{&Attention::q,
                             &Attention::k,
                             &Attention::v,
                             &Attention::bias,
                             &Attention::alibi_slopes,
                             &Attention::sinks,
                             &Attention::cu_seqlens_q,
                             &Attention::cu_seqlens_k,
                             &Attention::seqused_q,
                             &Attention::seqused_k,
                             &Attention::block_table,
                             &Attention::dout,
                             &Attention::dlse};
constexpr std::array kOutputs{&Attention::out, &Attention::lse,   &Attention::dq,    &Attention::dk,
                              &Attention::dv,  &Attention::dbias, &Attention::dsinks};

/// cudaMemcpy from pageable memory returns before the last bytes arrive, and a stream that does not
/// block waits for nothing.
void wait_for_copies() { check(cudaStreamSynchronize(cudaStreamLegacy), "wait for copies"); }

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
  }
}

const std::string& missing() {
  static const std::string reason = [] {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) return std::string(cudaGetErrorString(status));
    return std::string(count == 0 ? "no CUDA device" : "");
  }();
  return reason;
}

Memory::Memory(std::size_t bytes) {
  if (bytes > 0) check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "cudaMalloc");
}

Memory::Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}

Memory::~Memory() { static_cast<void>(cudaFree(data_)); }

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreate");
}

Stream::~Stream() { static_cast<void>(cudaStreamDestroy(handle_)); }

void Stream::synchronize() const { check(cudaStreamSynchronize(handle_), "cudaStreamSynchronize"); }

Mirror::Mirror(const Attention& host, std::int32_t index) : attention(host) {
  for (const auto member : kInputs) add(host.*member, attention.*member, index, false);
  for (const auto member : kOutputs) add(host.*member, attention.*member, index, true);
}

void Mirror::add(const TensorView& host, TensorView& view, std::int32_t index, bool output) {
  if (!host.given()) return;
  view.device = {onchip::DeviceType::cuda, index};
  view.data = nullptr;
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(host.ndim); ++axis) {
    if (host.shape[axis] == 0) return;
    const std::int64_t reach = host.stride[axis] * (host.shape[axis] - 1);
    (reach < 0 ? low : high) += reach;
  }
  const std::int64_t size = onchip::size_of(host.dtype);
  std::byte* first = static_cast<std::byte*>(host.data) + low * size;
  const auto bytes = static_cast<std::size_t>((high - low + 1) * size);
  const std::size_t off = reinterpret_cast<std::uintptr_t>(first) % kAligned;
  memory_.emplace_back(off + bytes);
  copies_.push_back({first, memory_.back().data() + off, bytes, output});
  view.data = copies_.back().device - low * size;
}

void Mirror::upload() const {
  for (const Copy& copy : copies_) {
    check(cudaMemcpy(copy.device, copy.host, copy.bytes, cudaMemcpyHostToDevice), "upload");
  }
  wait_for_copies();
}

void Mirror::download() const {
  for (const Copy& copy : copies_) {
    if (!copy.output) continue;
    check(cudaMemcpy(copy.host, copy.device, copy.bytes, cudaMemcpyDeviceToHost), "download");
  }
}

void Mirror::clear_inputs() const {
  for (const Copy& copy : copies_) {
    if (!copy.output) check(cudaMemset(copy.device, 0, copy.bytes), "clear");
  }
  wait_for_copies();
}

void Mirror::queue_inputs(const Stream& stream) {
  const std::size_t count = copies_.size();
  for (std::size_t n = 0; n < count; ++n) {
    const Copy copy = copies_[n];
    if (copy.output) continue;
    // From device memory: a copy from the host's pageable memory would wait for the stream.
    memory_.emplace_back(copy.bytes);
    std::byte* source = memory_.back().data();
    check(cudaMemcpy(source, copy.host, copy.bytes, cudaMemcpyHostToDevice), "stage");
    wait_for_copies();
    check(
        cudaMemcpyAsync(copy.device, source, copy.bytes, cudaMemcpyDeviceToDevice, stream.handle()),
        "queue");
  }
}

Launch::Launch(onchip::Plan plan) : plan_(std::move(plan)), workspace_(plan_.workspace_bytes()) {
  if (std::getenv("ONCHIP_TEST_RAW_WORKSPACE") != nullptr || plan_.workspace_bytes() == 0) return;
  check(cudaMemset(workspace_.data(), 0xFF, plan_.workspace_bytes()), "poison");
  check(cudaDeviceSynchronize(), "poison");
}

Launch::Launch(const Attention& attention, Pass pass) : Launch(onchip::plan(attention, pass)) {}

Launch::Launch(const Attention& attention, Pass pass, const onchip::DeviceInfo& device)
    : Launch(onchip::plan(attention, pass, device)) {}

void Launch::operator()(const Attention& attention, const Stream& stream) const {
  const auto pass = plan_.info().pass == Pass::forward ? onchip::forward : onchip::backward;
  pass(plan_, attention, workspace_.data(), plan_.workspace_bytes(), stream.view());
}

void call(const Attention& attention, Pass pass) {
  call_for(attention, pass, onchip::device_info("cuda:0"));
}

void call_for(const Attention& attention, Pass pass, const onchip::DeviceInfo& info) {
  const Mirror mirror(attention);
  mirror.upload();
  const Launch launch(mirror.attention, pass, info);
  const Stream stream;
  launch(mirror.attention, stream);
  stream.synchronize();
  mirror.download();
}

void run(fixture::Problem& problem) {
  problem.run_with(call, Pass::forward);
  problem.run_with(call, Pass::backward);
}

std::vector<std::vector<std::uint64_t>> bits(const Attention& attention) {
  std::vector<std::vector<std::uint64_t>> all;
  for (const auto member : kOutputs) {
    const TensorView& view = attention.*member;
    all.push_back(view.given() ? fixture::bits(view) : std::vector<std::uint64_t>{});
  }
  return all;
}

}  // namespace device
