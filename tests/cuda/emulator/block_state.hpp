// SPDX-License-Identifier: Apache-2.0
// What block.cpp and barriers.cpp have between them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace emulator {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxWarps = kMaxThreads / 32;

/// Lanes of every warp that wait for something.
using Waiters = std::array<std::uint32_t, kMaxWarps>;
enum class Wait : std::uint8_t { nothing, lanes, block, barrier, named_barrier, dozing };

/// This thread waits until its `waiters` are released; `at` says which barrier.
void wait_among(Waiters& waiters, Wait what, std::uint32_t at = 0);
void release(Waiters& waiters);

/// Before a wait at a barrier: now and then a lane stays behind the others of its warp.
void come_to_barrier();

/// A new block has none.
void reset_barriers();
std::string describe_barrier(std::uint32_t address);
std::string describe_named_barrier(std::uint32_t id);

}  // namespace emulator
