// SPDX-License-Identifier: Apache-2.0
#include "hopper.hpp"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>

#include "block.hpp"

namespace emulator {
namespace {

constexpr unsigned kMaxWarps = 32;
constexpr std::uint32_t kElementBytes = 2;
constexpr std::uint32_t kAtomBytes = 1024;  // 8 rows of 128 bytes, after which the swizzle repeats

/// Where the 128-byte swizzle puts 16 bytes.
std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7U) << 4; }

// --- Writes of threads that copies and products do not see yet -----------------------------------

/// Chunks of 16 bytes, and the threads that wrote them.
thread_local std::unordered_map<std::uint32_t, unsigned> unfenced;

void check_fenced(std::uint32_t chunk, const char* what) {
  if (!unfenced.empty() && unfenced.contains(chunk)) fail(what);
}

// --- Tensor maps ---------------------------------------------------------------------------------

constexpr std::uint32_t kMaxRank = 5;
constexpr std::uint32_t kEncoded = 0x656d756c;
struct TensorMap {
  std::uint32_t encoded = 0, rank = 0;
  const std::byte* data = nullptr;
  std::array<std::uint64_t, kMaxRank> extents{}, strides{};  // strides in bytes
  std::array<std::uint32_t, kMaxRank> box{};
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

/// What the library uses of it; the rules are those of the driver.
CUresult encode(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* data,
                const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion /*promotion*/,
                CUtensorMapFloatOOBfill fill) {
  constexpr std::uint32_t kMostInBox = 256;
  constexpr std::uint64_t kMostStride = std::uint64_t{1} << 40;
  constexpr std::uint64_t kMostExtent = std::uint64_t{1} << 32;
  const bool known =
      (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16) &&
      interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
      fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  if (!known || rank < 3 || rank > kMaxRank || reinterpret_cast<std::uintptr_t>(data) % 16 != 0 ||
      box[0] * kElementBytes > 128) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMap map{.encoded = kEncoded, .rank = rank, .data = static_cast<const std::byte*>(data)};
  map.extents.fill(1);
  map.box.fill(1);
  map.strides[0] = kElementBytes;
  for (std::uint32_t n = 0; n < rank; ++n) {
    if (extents[n] == 0 || extents[n] > kMostExtent || box[n] == 0 || box[n] > kMostInBox ||
        steps[n] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    map.extents[n] = extents[n];
    map.box[n] = box[n];
    if (n == 0) continue;
    if (strides[n - 1] % 16 != 0 || strides[n - 1] >= kMostStride) return CUDA_ERROR_INVALID_VALUE;
    map.strides[n] = strides[n - 1];
  }
  std::memcpy(to, &map, sizeof(map));
  return CUDA_SUCCESS;
}

/// A box that is on its way.
struct BoxCopy {
  TensorMap map{};
  std::uint32_t to = 0, barrier = 0;
  std::array<std::int64_t, kMaxRank> at{};

  [[nodiscard]] std::uint32_t bytes() const {
    std::uint32_t count = kElementBytes;
    for (const std::uint32_t extent : map.box) count *= extent;
    return count;
  }
  /// Calls f(address of 16 bytes, place of their first element in the box).
  template <class F>
  void for_each_chunk(F f) const {
    constexpr std::uint32_t kChunk = 16 / kElementBytes;
    std::array<std::uint32_t, kMaxRank> i{};
    for (std::uint32_t offset = 0; offset < bytes(); offset += 16) {
      f(swizzled(to + offset), i);
      i[0] += kChunk;
      for (std::uint32_t n = 0; n + 1 < kMaxRank && i[n] >= map.box[n]; ++n) i[n] = 0, ++i[n + 1];
    }
  }
  /// Element `n` behind place `i`, or null where the tensor has none.
  [[nodiscard]] const std::byte* element(std::array<std::uint32_t, kMaxRank> i,
                                         std::uint32_t n) const {
    const std::byte* from = map.data;
    i[0] += n;
    for (std::uint32_t axis = 0; axis < kMaxRank; ++axis) {
      const std::int64_t place = at[axis] + i[axis];
      if (place < 0 || place >= static_cast<std::int64_t>(map.extents[axis])) return nullptr;
      from += place * static_cast<std::int64_t>(map.strides[axis]);
    }
    return from;
  }
  void make() const {
    for_each_chunk([this](std::uint32_t address, const auto& i) {
      check_fenced(address, "a copy over what a thread wrote without a fence");
      std::byte* chunk = shared_memory(address, 16);
      std::memset(chunk, 0, 16);
      for (std::uint32_t n = 0; n < 16 / kElementBytes; ++n) {
        if (const std::byte* from = element(i, n)) {
          std::memcpy(chunk + n * kElementBytes, from, kElementBytes);
        }
      }
    });
    barrier_complete(barrier, bytes());
  }
};

// --- Products ------------------------------------------------------------------------------------

constexpr std::uint32_t kRows = 16, kDepth = 16, kMaxColumns = 256;  // of one warp
constexpr std::uint32_t kPoison = 0x7fc0dead;                        // NaN

/// Row and column of the warp's tile that a lane's accumulator is.
std::uint32_t row_of(std::uint32_t lane, std::uint32_t i) { return lane / 4 + i / 2 % 2 * 8; }
std::uint32_t column_of(std::uint32_t lane, std::uint32_t i) {
  return i / 4 * 8 + lane % 4 * 2 + i % 2;
}

/// Accumulators of a warp while products run.
struct Accumulators {
  std::array<float*, 32> registers;
  std::uint32_t columns;
  unsigned products = 0;
  float value[kRows][kMaxColumns];

  template <class F>
  void for_each(F f) {
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t i = 0; i < columns / 2; ++i) {
        f(registers[lane][i], value[row_of(lane, i)][column_of(lane, i)]);
      }
    }
  }
  void take() {
    for_each([](float& its, float& x) {
      x = its;
      its = std::bit_cast<float>(kPoison);
    });
  }
  void give_back() {
    for_each([](float& its, const float& x) {
      if (std::bit_cast<std::uint32_t>(its) != kPoison) {
        fail("an accumulator is written while its product runs");
      }
      its = x;
    });
  }
};

struct Product {
  Accumulators* c = nullptr;
  ProductKind kind{};
  std::array<const std::uint32_t*, 32> registers{};  // of a
  std::uint32_t a[32][4] = {};                       // what they held
  std::uint64_t a_operand = 0, b_operand = 0;
  bool adds = false, made = false, last_of_group = false;
};

/// What a warp has asked for, in order.
struct Products {
  std::deque<Product> running;
  std::list<Accumulators> accumulators;
  bool fenced = false;
};
thread_local std::array<Products, kMaxWarps> products_of_warps;
Products& products() { return products_of_warps[warp_number()]; }

/// A matrix in shared memory as its descriptor says: rows of 128 bytes, swizzled.
struct Operand {
  std::uint32_t start, leading, stride;
  const float* floats;

  Operand(std::uint64_t bits, const float* table)
      : start(field(bits, 0)), leading(field(bits, 16)), stride(field(bits, 32)), floats(table) {
    constexpr std::uint64_t kSwizzle128 = 1;
    constexpr std::uint64_t kBaseOffset = std::uint64_t{7} << 49;
    if (bits >> 62 != kSwizzle128 || (bits & kBaseOffset) != 0 || stride != kAtomBytes) {
      fail("an operand that is not in rows of 128 bytes with their swizzle");
    }
  }
  static std::uint32_t field(std::uint64_t bits, int shift) {
    return static_cast<std::uint32_t>(bits >> shift & 0x3fffU) << 4;
  }
  /// The eight elements `offset` bytes behind the start.
  void read(std::uint32_t offset, float* to, std::size_t step) const {
    const std::uint32_t address = swizzled(start + offset);
    check_fenced(address, "a product of what a thread wrote without a fence");
    std::uint16_t elements[8];
    std::memcpy(elements, shared_memory(address, 16), 16);
    for (std::size_t n = 0; n < 8; ++n) to[n * step] = floats[elements[n]];
  }
};

struct Tile {
  alignas(64) float a[kRows][kDepth];
  alignas(64) float b[kDepth][kMaxColumns];
};

#if defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("arch=haswell", "default")))
#endif
void multiply(const Tile& tile, Accumulators& c) {
  for (std::uint32_t row = 0; row < kRows; ++row) {
    for (std::uint32_t first = 0; first < c.columns; first += 8) {
      float sum[8] = {};
      for (std::uint32_t k = 0; k < kDepth; ++k) {
        for (std::uint32_t n = 0; n < 8; ++n) sum[n] += tile.a[row][k] * tile.b[k][first + n];
      }
      for (std::uint32_t n = 0; n < 8; ++n) c.value[row][first + n] += sum[n];
    }
  }
}

void read_a(const Product& p, float (&a)[kRows][kDepth]) {
  if (p.registers[0] == nullptr) {
    const Operand operand(p.a_operand, p.kind.floats);
    for (std::uint32_t row = 0; row < kRows; ++row) {
      const std::uint32_t m = warp_number() % 4 * kRows + row;
      const std::uint32_t offset = m / 8 * operand.stride + m % 8 * 128;
      operand.read(offset, a[row], 1);
      operand.read(offset + 16, a[row] + 8, 1);
    }
    return;
  }
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      float* to = &a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
      to[0] = p.kind.floats[p.a[lane][i] & 0xffffU];
      to[1] = p.kind.floats[p.a[lane][i] >> 16];
    }
  }
}

void read_b(const Product& p, float (&b)[kDepth][kMaxColumns]) {
  const Operand operand(p.b_operand, p.kind.floats);
  const auto columns = static_cast<std::uint32_t>(p.kind.columns);
  if (p.kind.columns_together) {
    for (std::uint32_t k = 0; k < kDepth; ++k) {
      for (std::uint32_t n = 0; n < columns; n += 8) {
        const std::uint32_t offset = n / 64 * operand.leading + n % 64 * kElementBytes;
        operand.read(offset + k / 8 * operand.stride + k % 8 * 128, b[k] + n, 1);
      }
    }
    return;
  }
  for (std::uint32_t n = 0; n < columns; ++n) {
    for (std::uint32_t k = 0; k < kDepth; k += 8) {
      operand.read(n / 8 * operand.stride + n % 8 * 128 + k * kElementBytes, &b[k][n], kMaxColumns);
    }
  }
}

void make(Product& p) {
  if (p.made) return;
  static thread_local Tile tile;
  read_a(p, tile.a);
  read_b(p, tile.b);
  if (!p.adds) std::memset(p.c->value, 0, sizeof(p.c->value));
  multiply(tile, *p.c);
  p.made = true;
}

/// Accumulators that products of this warp run on already, or now begin to.
Accumulators& accumulators(Products& all, const ProductKind& kind, const ProductLane* const* in) {
  const auto columns = static_cast<std::uint32_t>(kind.columns);
  for (Accumulators& c : all.accumulators) {
    if (c.registers[0] != in[0]->c) continue;
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      if (c.registers[lane] != in[lane]->c) fail("lanes of a warp at different accumulators");
    }
    if (c.columns != columns) fail("products of two shapes with the same accumulators");
    return c;
  }
  Accumulators& c = all.accumulators.emplace_back();
  for (std::uint32_t lane = 0; lane < 32; ++lane) c.registers[lane] = in[lane]->c;
  c.columns = columns;
  c.take();
  return c;
}

void add_product(const ProductKind& kind, const ProductLane* const* in) {
  Products& all = products();
  if (!all.fenced) fail("a product without a fence behind the last wait");
  Product& p = all.running.emplace_back();
  p.kind = kind;
  p.a_operand = in[0]->a_operand;
  p.b_operand = in[0]->b_operand;
  p.adds = in[0]->adds;
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const ProductLane& its = *in[lane];
    if (its.a_operand != p.a_operand || its.b_operand != p.b_operand || its.adds != p.adds) {
      fail("lanes of a warp at different products");
    }
    p.registers[lane] = its.a;
    if (its.a != nullptr) std::memcpy(p.a[lane], its.a, sizeof(p.a[lane]));
  }
  p.c = &accumulators(all, kind, in);
  ++p.c->products;
}

/// The oldest product, which its warp has waited for.
void end_product(Products& all) {
  Product& p = all.running.front();
  make(p);
  for (std::uint32_t lane = 0; lane < 32 && p.registers[0] != nullptr; ++lane) {
    if (std::memcmp(p.a[lane], p.registers[lane], sizeof(p.a[lane])) != 0) {
      fail("an operand in registers is written while its product runs");
    }
  }
  if (--p.c->products == 0) {
    p.c->give_back();
    all.accumulators.remove_if([&](const Accumulators& c) { return &c == p.c; });
  }
  all.running.pop_front();
}

}  // namespace

void* tensor_map_encoder() { return reinterpret_cast<void*>(&encode); }

void copy_box(std::uint32_t to, const void* map, std::uint32_t barrier,
              std::initializer_list<int> at) {
  BoxCopy copy{.to = to, .barrier = barrier};
  std::memcpy(&copy.map, map, sizeof(copy.map));
  if (copy.map.encoded != kEncoded) fail("a tensor map that the driver did not make");
  if (copy.map.rank != at.size()) fail("a tensor map of another rank");
  if (to % kAtomBytes != 0) fail("a box off 1024 bytes");
  std::copy(at.begin(), at.end(), copy.at.begin());
  copy.for_each_chunk([](std::uint32_t address, const auto& /*place*/) {
    std::memset(shared_memory(address, 16), 0xFF, 16);
  });
  do_later([copy] { copy.make(); });
}

void note_write(std::uint32_t address) { unfenced[address] = threadIdx.x; }

void fence_writes() {
  std::erase_if(unfenced, [](const auto& write) { return write.second == threadIdx.x; });
}

void multiply_later(const ProductKind& kind, const ProductLane& lane) {
  together<int>(lane, [&](const ProductLane* const* in, int* const*) { add_product(kind, in); });
}

void fence_products() {
  together<int>(0, [](const int* const*, int* const*) { products().fenced = true; });
}

void commit_products() {
  together<int>(0, [](const int* const*, int* const*) {
    Products& all = products();
    if (all.running.empty() || all.running.back().last_of_group) fail("a group of no products");
    all.running.back().last_of_group = true;
    for (Product& p : all.running) {
      if (!is_early()) break;
      make(p);
    }
  });
}

void wait_products(unsigned pending) {
  together<unsigned>(pending, [](const unsigned* const* in, unsigned* const*) {
    linger();
    Products& all = products();
    auto groups = std::count_if(all.running.begin(), all.running.end(),
                                [](const Product& p) { return p.last_of_group; });
    while (groups > *in[0]) {
      groups -= all.running.front().last_of_group ? 1 : 0;
      end_product(all);
      all.fenced = false;
    }
  });
}

void end_products() {
  for (Products& all : products_of_warps) {
    if (!all.running.empty()) fail("a block ends before a product that it began");
    all.fenced = false;
  }
  unfenced.clear();
}

}  // namespace emulator
