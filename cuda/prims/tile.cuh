// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit rows in shared memory. A row is kDim elements, cut into chunks of 16 bytes; chunk
// c of row r lies at place c ^ (r % 8), so that the 8 rows of a matrix load meet 8 different banks.
#pragma once

#include <cstdint>

#include "prims/cp_async.cuh"
#include "prims/mma.cuh"
#include "prims/shared.cuh"

namespace onchip::cuda {

template <int kDim>
__device__ __forceinline__ std::uint32_t chunk_offset(int row, int chunk) {
  static_assert(kDim % 64 == 0, "the swizzle permutes groups of 8 chunks");
  return static_cast<std::uint32_t>((row * (kDim / 8) + (chunk ^ (row & 7))) * 16);
}

/// A lane's place in a 16 x 16 block of a tile for matrix loads: the address of its row and half
/// row in block (0, 0). Block (row, column) is then a constant away, see block_address. Lanes 0-15
/// name the 16 rows, lanes 16-31 their right halves.
template <int kDim>
__device__ __forceinline__ std::uint32_t rows_first(std::uint32_t tile, int lane) {
  return tile + chunk_offset<kDim>(lane % 16, lane / 16);
}

/// Lanes 0-7 name rows 0-7, lanes 8-15 their right halves, lanes 16-31 the same of rows 8-15.
template <int kDim>
__device__ __forceinline__ std::uint32_t columns_first(std::uint32_t tile, int lane) {
  return tile + chunk_offset<kDim>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

/// Columns 16 apart are chunks 2 apart, which the swizzle turns into a flip of address bits 5 and
/// 6; tiles begin at multiples of 128 bytes. Rows 16 apart keep their swizzle.
template <int kDim>
__device__ __forceinline__ std::uint32_t block_address(std::uint32_t lane_place, int row,
                                                       int column) {
  return (lane_place ^ static_cast<std::uint32_t>(column % 4 * 32)) +
         static_cast<std::uint32_t>(row * 32 * kDim + column / 4 * 128);
}

/// One row's 8 elements from `from` on into a chunk, when rows are not 16-byte aligned.
template <class Element>
__device__ __forceinline__ void copy_elements(std::uint32_t to, const Element* from, bool valid) {
  std::uint32_t words[4] = {};
  if (valid) {
    const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = bits[2 * i] | static_cast<std::uint32_t>(bits[2 * i + 1]) << 16;
  }
  store_shared(to, words);
}

/// Starts the copy of kRows rows, `stride` elements apart, into a tile. Rows from `count` on, and
/// columns from `dim` on, become zeros and are not read; kWhole says that `count` is kRows or more.
/// Rows begin at multiples of 16 bytes.
template <int kDim, int kRows, int kThreads, bool kWhole = false, class Element>
__device__ __forceinline__ void load_rows(std::uint32_t tile, const Element* from,
                                          std::int64_t stride, int count, int dim) {
  constexpr int kChunks = kDim / 8;
  constexpr int kStep = kThreads / kChunks;  // rows of one pass
  static_assert(kRows % kStep == 0 && kThreads % kChunks == 0, "whole passes");
  static_assert(kStep % 8 == 0 || 8 % kStep == 0, "a pass leaves the swizzle or flips its bits");
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const bool inside = chunk * 8 < dim;
  const int valid = inside ? count - row : 0;
  from += row * stride + chunk * 8;
  const std::uint32_t place = tile + chunk_offset<kDim>(row, chunk);
#pragma unroll
  for (int pass = 0; pass < kRows / kStep; ++pass) {
    const std::uint32_t flip = pass * kStep % 8 * 16;
    copy_16((place ^ flip) + pass * kStep * kDim * 2, from, kWhole ? inside : pass * kStep < valid);
    from += kStep * stride;
  }
}

/// The same for rows anywhere, at any alignment: `address(row)` is called for rows below `count`.
template <int kDim, int kRows, int kThreads, class Element, class Address>
__device__ __forceinline__ void gather_rows(std::uint32_t tile, int count, int dim, bool aligned,
                                            Address address) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kChunks; at += kThreads) {
    const int row = at / kChunks;
    const int chunk = at % kChunks;
    const bool valid = row < count && chunk * 8 < dim;
    const Element* from = valid ? address(row) + chunk * 8 : nullptr;
    const std::uint32_t to = tile + chunk_offset<kDim>(row, chunk);
    if (aligned) {
      copy_16(to, from, valid);
    } else {
      copy_elements(to, from, valid);
    }
  }
}

/// kRows rows, `stride` elements apart, whatever their alignment.
template <int kDim, int kRows, int kThreads, class Element>
__device__ __forceinline__ void load_tile(std::uint32_t tile, const Element* from,
                                          std::int64_t stride, int count, int dim, bool aligned) {
  if (aligned) {
    load_rows<kDim, kRows, kThreads>(tile, from, stride, count, dim);
  } else {
    gather_rows<kDim, kRows, kThreads, Element>(tile, count, dim, false,
                                                [&](int row) { return from + row * stride; });
  }
}

/// Writes rows [first, first + kRows) of a tile, by one warp. Rows from `limit` and columns from
/// `dim` on are left out. Row r lies at address(r), or, where `stride` > 0, at address(first) and
/// so on.
template <int kDim, int kRows, class Element, class Address>
__device__ __forceinline__ void store_tile(const char* tile, int first, int limit, int dim,
                                           bool aligned, std::int64_t stride, Address address) {
  constexpr int kChunks = kDim / 8;
  constexpr int kStep = 32 / kChunks > 0 ? 32 / kChunks : 1;  // rows of one pass
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = lane % kChunks;
  if (aligned && stride > 0) {
    if (chunk * 8 >= dim || first >= limit) return;
    const int row = first + lane / kChunks;
    Element* to = address(first) + lane / kChunks * stride + chunk * 8;
#pragma unroll
    for (int pass = 0; pass < kRows / kStep; ++pass, to += kStep * stride) {
      if (row + pass * kStep >= limit) return;
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<const uint4*>(tile + chunk_offset<kDim>(row + pass * kStep, chunk));
    }
    return;
  }
#pragma unroll 1
  for (int at = lane; at < kRows * kChunks; at += 32) {
    const int row = first + at / kChunks;
    if (row >= limit || at % kChunks * 8 >= dim) continue;
    const auto* words =
        reinterpret_cast<const Element*>(tile + chunk_offset<kDim>(row, at % kChunks));
    Element* to = address(row) + at % kChunks * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = words[i];
  }
}

}  // namespace onchip::cuda
