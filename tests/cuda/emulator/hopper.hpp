// SPDX-License-Identifier: Apache-2.0
// What Hopper does by itself beside a block's threads: copies of tensor boxes and warpgroup
// products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace emulator {

/// Copies a box of a tensor, of which `map` is what the driver's function below made, and tells the
/// barrier. Until then its destination is full of NaN.
void copy_box(std::uint32_t to, const void* map, std::uint32_t barrier,
              std::initializer_list<int> at);

/// cuTensorMapEncodeTiled: its address.
void* tensor_map_encoder();

/// 16 bytes of shared memory that this thread has written: no copy may come there, and no product
/// read them, before it calls fence_writes().
void note_write(std::uint32_t address);
void fence_writes();

/// What all products of an instruction are, and what one lane brings to it.
struct ProductKind {
  const float* floats;  // of each 16-bit element
  int columns;
  bool columns_together;  // of b, in memory
};
struct ProductLane {
  float* c;
  const std::uint32_t* a;  // four registers; null: a lies in shared memory, as a_operand says
  std::uint64_t a_operand, b_operand;
  bool adds;
};

/// c += a . b, made as late as the warp's waits allow, or earlier, by chance. Until then its
/// registers hold NaN, and both operands may be read.
void multiply_later(const ProductKind& kind, const ProductLane& lane);
void fence_products();
void commit_products();
void wait_products(unsigned pending);

/// Between blocks: stops the program where a product was not waited for.
void end_products();

}  // namespace emulator
