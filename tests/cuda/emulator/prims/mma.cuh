// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "block.hpp"
#include "hopper.hpp"
#include "prims/convert.cuh"
#include "prims/fragment.cuh"

namespace onchip::cuda {

/// Four 8x8 matrices of 16-bit elements; lanes 8 i to 8 i + 7 name the rows of matrix i.
template <bool kTransposed>
Fragment load_matrices(std::uint32_t address) {
  return emulator::together<Fragment>(
      address, [](const std::uint32_t* const* rows, Fragment* const* out) {
        for (int i = 0; i < 4; ++i) {
          std::uint16_t matrix[8][8];
          for (int row = 0; row < 8; ++row) {
            std::memcpy(matrix[row], emulator::shared_memory(*rows[8 * i + row], 16), 16);
          }
          for (int lane = 0; lane < 32; ++lane) {
            const int row = lane / 4;
            const int col = lane % 4 * 2;
            const std::uint32_t low = kTransposed ? matrix[col][row] : matrix[row][col];
            const std::uint32_t high = kTransposed ? matrix[col + 1][row] : matrix[row][col + 1];
            out[lane]->x[i] = low | high << 16;
          }
        }
      });
}
inline Fragment load_matrix(std::uint32_t address) { return load_matrices<false>(address); }
inline Fragment load_matrix_transposed(std::uint32_t address) {
  return load_matrices<true>(address);
}

/// The inverse of load_matrix.
struct StoredRow {
  std::uint32_t address;
  Fragment f;
};
inline void store_matrix(std::uint32_t address, const Fragment& f) {
  emulator::note_write(address);
  emulator::together<int>(StoredRow{address, f}, [](const StoredRow* const* in, int* const*) {
    for (int i = 0; i < 4; ++i) {
      for (int row = 0; row < 8; ++row) {
        std::byte* to = emulator::shared_memory(in[8 * i + row]->address, 16);
        for (int n = 0; n < 4; ++n) std::memcpy(to + 4 * n, &in[4 * row + n]->f.x[i], 4);
      }
    }
  });
}

/// Every 16-bit element as a float: on the CPU a table is faster than the conversion.
template <class Element>
const std::vector<float>& floats() {
  static const std::vector<float> table = [] {
    std::vector<float> all(1 << 16);
    for (std::uint32_t bits = 0; bits < all.size(); ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      Element element;
      std::memcpy(&element, &half, 2);
      all[bits] = to_float(element);
    }
    return all;
  }();
  return table;
}

struct Product {
  Fragment a;
  std::uint32_t b[2];
  float c[4];
};
struct Accumulator {
  float c[4];
};

template <class Element>
void multiply(const Product* const* in, Accumulator* const* out) {
  const std::vector<float>& value = floats<Element>();
  float a[16][16];
  float b[16][8];
  float c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Product& x = *in[lane];
    const int row = lane / 4;
    const int col = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      float* to = &a[row + i % 2 * 8][col + i / 2 * 8];
      to[0] = value[x.a.x[i] & 0xffffU];
      to[1] = value[x.a.x[i] >> 16];
      c[row + i / 2 * 8][col + i % 2] = x.c[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[col + 8 * i][row] = value[x.b[i] & 0xffffU];
      b[col + 8 * i + 1][row] = value[x.b[i] >> 16];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) out[lane]->c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

template <class Element>
void mma(float (&c)[4], const Fragment& a, std::uint32_t b0, std::uint32_t b1) {
  const Product mine{a, {b0, b1}, {c[0], c[1], c[2], c[3]}};
  const auto result = emulator::together<Accumulator>(mine, &multiply<Element>);
  for (int i = 0; i < 4; ++i) c[i] = result.c[i];
}

}  // namespace onchip::cuda
