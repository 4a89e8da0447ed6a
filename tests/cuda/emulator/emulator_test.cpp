// SPDX-License-Identifier: Apache-2.0
// Kernels that are wrong, and what the emulator says to them.
#include <cuda.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "block.hpp"
#include "hopper.hpp"

namespace {

using Index = std::uint32_t;

constexpr Index kTile = 2048;  // an address in shared memory, behind its first 896 bytes
constexpr Index kBarrier = kTile - 128;
constexpr std::size_t kSharedBytes = 896 + 8192;
constexpr Index kColumns = 64;

template <class Kernel>
void run(unsigned threads, Kernel kernel) {
  emulator::run(1, threads, kSharedBytes, kernel);
}

void make_barrier(unsigned arrivals) {
  if (threadIdx.x == 0) emulator::barrier_init(kBarrier, arrivals);
  emulator::sync_block();
}

TEST(EmulatorBarriers, DeadlocksSayWhoWaitsForWhat) {
  const auto kernel = [] {
    make_barrier(2);
    if (threadIdx.x == 5) emulator::barrier_arrive(kBarrier);
    if (threadIdx.x < 32) {
      emulator::barrier_wait(kBarrier, 0);
    } else {
      emulator::named_barrier(3, 96, true);
    }
  };
  EXPECT_DEATH(run(64, kernel), "warp 0, lanes ffffffff: wait for barrier 0 .*1 arrivals and 0 ");
  EXPECT_DEATH(run(64, kernel), "warp 1, lanes ffffffff: wait for named barrier 3: 32 of 96");
}

TEST(EmulatorBarriers, APhaseWaitsForItsBytes) {
  const auto kernel = [] {
    make_barrier(1);
    if (threadIdx.x == 0) emulator::barrier_expect(kBarrier, 32);
    emulator::sync_block();
    if (threadIdx.x == 0) emulator::barrier_complete(kBarrier, 16);
    emulator::barrier_wait(kBarrier, 0);
  };
  EXPECT_DEATH(run(32, kernel), "0 arrivals and 16 bytes are missing");
}

TEST(EmulatorBarriers, WaitsThatComeTooLateAreFound) {
  EXPECT_DEATH(run(64,
                   [] {
                     make_barrier(1);
                     if (threadIdx.x == 0) {
                       emulator::barrier_arrive(kBarrier);
                       emulator::barrier_arrive(kBarrier);
                     }
                     emulator::sync_block();
                     emulator::barrier_wait(kBarrier, 0);
                   }),
               "after the next phase has ended");
}

TEST(EmulatorBarriers, WaitsInALoopWithoutAnEndAreFound) {
  EXPECT_DEATH(run(32,
                   [] {
                     make_barrier(1);
                     while (true) emulator::barrier_wait(kBarrier, 1);
                   }),
               "without an end");
}

/// bfloat16.
std::uint16_t bits_of(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}
const float* floats() {
  static const std::vector<float> table = [] {
    std::vector<float> all(1 << 16);
    for (Index n = 0; n < all.size(); ++n) all[n] = std::bit_cast<float>(n << 16);
    return all;
  }();
  return table.data();
}

/// Element (row, column) of a tile in rows of 128 bytes.
std::byte* element(Index row, Index column) {
  const Index address = kTile + row * 128 + (column / 8 ^ row % 8) * 16;
  return emulator::shared_memory(address, 16) + column % 8 * 2;
}

CUtensorMap map_of(const std::vector<std::uint16_t>& data, cuuint64_t rows) {
  const cuuint64_t extents[] = {kColumns, rows, 1};
  const cuuint64_t strides[] = {kColumns * 2, 16};
  const cuuint32_t box[] = {kColumns, 64, 1};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const auto encode =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(emulator::tensor_map_encoder());
  EXPECT_EQ(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
                   const_cast<std::uint16_t*>(data.data()), extents, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS);
  return map;
}

/// A box that begins two rows before the tensor and ends behind it.
TEST(EmulatorHopper, ABoxIsSwizzledAndZeroOutsideOfItsTensor) {
  constexpr Index kRows = 40;
  std::vector<std::uint16_t> data(kRows * kColumns);
  for (Index n = 0; n < data.size(); ++n) data[n] = static_cast<std::uint16_t>(n + 1);
  const CUtensorMap map = map_of(data, kRows);
  run(32, [&] {
    make_barrier(1);
    if (threadIdx.x == 0) {
      emulator::barrier_expect(kBarrier, 64 * kColumns * 2);
      emulator::copy_box(kTile, &map, kBarrier, {0, -2, 0});
    }
    emulator::barrier_wait(kBarrier, 0);
    for (Index row = threadIdx.x; row < 64; row += 32) {
      for (Index column = 0; column < kColumns; ++column) {
        std::uint16_t got;
        std::memcpy(&got, element(row, column), 2);
        const bool inside = row >= 2 && row < kRows + 2;
        ASSERT_EQ(got, inside ? (row - 2) * kColumns + column + 1 : 0) << row << " " << column;
      }
    }
  });
}

/// Where a kernel may go wrong with a product.
struct Fault {
  bool unfenced_write = false, unfenced_product = false, early_read = false, early_write = false;
};

/// c = a . b, b being 1 where column == depth: c is a in its first 16 columns, and 0 in the others.
void product_kernel(const Fault& fault) {
  const Index lane = threadIdx.x % 32;
  for (Index row = threadIdx.x; row < kColumns; row += 32) {
    for (Index k = 0; k < 16; ++k) {
      const std::uint16_t one = bits_of(row == k ? 1.0F : 0.0F);
      std::memcpy(element(row, k), &one, 2);
      emulator::note_write(kTile + row * 128 + (k / 8 ^ row % 8) * 16);
    }
  }
  if (!fault.unfenced_write) emulator::fence_writes();
  emulator::sync_block();
  const auto value = [](Index row, Index k) { return static_cast<float>(row + k); };
  std::uint32_t a[4];
  for (Index i = 0; i < 4; ++i) {
    const Index row = lane / 4 + i % 2 * 8;
    const Index k = lane % 4 * 2 + i / 2 * 8;
    a[i] = bits_of(value(row, k)) | static_cast<Index>(bits_of(value(row, k + 1))) << 16;
  }
  std::array<float, kColumns / 2> c{};
  const std::uint64_t b = kTile >> 4 | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
  if (!fault.unfenced_product) emulator::fence_products();
  emulator::multiply_later({floats(), kColumns, false}, {c.data(), a, 0, b, false});
  emulator::commit_products();
  if (fault.early_read) {
    ASSERT_TRUE(std::isnan(c[0]));
  }
  if (fault.early_write) a[0] = 0x12345678;
  emulator::wait_products(0);
  for (Index i = 0; i < c.size(); ++i) {
    const Index row = lane / 4 + i / 2 % 2 * 8;
    const Index column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    ASSERT_EQ(c[i], column < 16 ? value(row, column) : 0.0F) << row << " " << column;
  }
}

TEST(EmulatorHopper, ProductsAreRightOnceTheyAreWaitedFor) {
  run(32, [] { product_kernel({.early_read = true}); });
}

TEST(EmulatorHopper, ProductsAreChecked) {
  EXPECT_DEATH(run(32, [] { product_kernel({.unfenced_write = true}); }), "without a fence");
  EXPECT_DEATH(run(32, [] { product_kernel({.unfenced_product = true}); }), "without a fence");
  EXPECT_DEATH(run(32, [] { product_kernel({.early_write = true}); }), "is written while");
}

}  // namespace
