// SPDX-License-Identifier: Apache-2.0
// The tile tables of the GPU kernels as data: one row is one kernel instance. The first row that
// serves the problem and fits the device's shared memory is taken, so better rows stand first.
// Tiles of the CPU come from plan_cpu (cpu_plan.hpp), which sizes them by the cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "onchip/plan.hpp"

namespace onchip::host {

/// How scores are masked, from the least to the most work: a row serves its class and those before.
enum class MaskClass : std::int32_t { dense, causal, local };

/// Families of GPU kernels, by the first compute capability that runs them.
inline constexpr std::int32_t kSm80 = 80;
inline constexpr std::int32_t kSm90 = 90;

struct TileRow {
  std::int32_t family;
  Pass pass;
  std::int32_t element_bytes;
  std::int32_t dim, dim_v;      // greatest D and Dv; memory is laid out for these
  MaskClass masks;              // the widest class served
  std::int32_t tile_q, tile_k;  // Br, Bc
  std::int32_t stages;          // buffers of K and V (forward), of Q (backward)
  std::int32_t warps;
  std::int32_t p;           // P tiles in shared memory; 0: P stays in registers
  std::int32_t dout;        // backward: buffers of dO
  std::int32_t ds;          // backward: dS tiles
  std::int32_t dq;          // backward: float32 dQ tiles on their way to memory; 0: from registers
  std::string_view suffix;  // tells instances with equal dtype and head dims apart
  std::int32_t q_stages = 1;  // forward: buffers of Q
  std::int32_t out = 0;       // forward: 2 KiB for the outputs of each warp that computes
  std::int64_t keys = 0;      // fewest keys of a sequence that it is for
  std::int32_t v_stages = 0;  // forward: buffers of V where there are not as many as of K
};

inline constexpr Pass kFwd = Pass::forward;
inline constexpr Pass kBwd = Pass::backward;
inline constexpr MaskClass kDense = MaskClass::dense;
inline constexpr MaskClass kCausal = MaskClass::causal;
inline constexpr MaskClass kAny = MaskClass::local;

// Hopper has no float32 rows: wgmma rounds float32 to tf32, which breaks the error bound, so
// float32 runs the sm80 kernels there.
// clang-format off
inline constexpr std::array kTiles = {
    // family pass bytes D   Dv   masks    Br   Bc  stages warps P  dO dS dQ suffix
    TileRow{kSm90, kFwd, 2, 64, 64, kDense, 192, 128, 3, 16, 0, 0, 0, 0, "_long", 2, 1, 8192},
    TileRow{kSm90, kFwd, 2, 64, 64, kAny, 256, 64, 4, 20, 0, 0, 0, 0, "", 2, 1},
    TileRow{kSm90, kFwd, 2, 96, 96, kAny, 128, 128, 2, 12, 0, 0, 0, 0, "", 1, 1, 0, 3},
    TileRow{kSm90, kFwd, 2, 128, 128, kAny, 128, 128, 2, 12, 0, 0, 0, 0, "", 1, 1, 0, 3},
    TileRow{kSm90, kFwd, 2, 192, 128, kAny, 128, 128, 2, 12, 0, 0, 0, 0, "", 1, 1},
    TileRow{kSm90, kFwd, 2, 192, 192, kAny, 128, 64, 3, 12, 0, 0, 0, 0, "", 1, 1},
    TileRow{kSm90, kFwd, 2, 256, 256, kAny, 128, 64, 2, 12, 0, 0, 0, 0, "", 1, 1},

    TileRow{kSm80, kFwd, 2, 64, 64, kAny, 128, 128, 2, 4, 0, 0, 0, 0, ""},
    TileRow{kSm80, kFwd, 2, 128, 128, kAny, 128, 64, 2, 4, 0, 0, 0, 0, ""},
    TileRow{kSm80, kFwd, 2, 256, 256, kAny, 64, 32, 2, 4, 0, 0, 0, 0, ""},
    TileRow{kSm80, kBwd, 2, 64, 64, kAny, 64, 128, 2, 4, 0, 2, 2, 0, ""},
    TileRow{kSm80, kBwd, 2, 128, 128, kAny, 64, 128, 2, 8, 2, 2, 2, 0, ""},
    TileRow{kSm80, kBwd, 2, 128, 128, kAny, 64, 128, 2, 8, 1, 2, 1, 0, "_single"},
    TileRow{kSm80, kBwd, 2, 128, 128, kAny, 64, 64, 1, 4, 1, 1, 1, 0, "_small"},
    TileRow{kSm80, kBwd, 2, 256, 256, kAny, 64, 64, 2, 8, 2, 2, 2, 0, ""},
    TileRow{kSm80, kBwd, 2, 256, 256, kAny, 64, 64, 1, 8, 1, 1, 1, 0, "_single"},
    TileRow{kSm80, kBwd, 2, 256, 256, kAny, 32, 32, 1, 4, 1, 1, 1, 0, "_small"},

    // A warp computes a row, or a key: nothing is kept in shared memory.
    TileRow{kSm80, kFwd, 4, 256, 256, kAny, 8, 1, 0, 8, 0, 0, 0, 0, ""},
    TileRow{kSm80, kBwd, 4, 256, 256, kAny, 1, 8, 0, 8, 0, 0, 0, 0, ""},
};
// clang-format on

/// One kind of buffer in shared memory.
struct OnChipPart {
  std::string_view name;
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // of one
};

/// The shared memory of one block, buffer by buffer, without its barriers. Hopper's tiles begin at
/// a multiple of 1024 bytes. Unused kinds have count 0.
constexpr std::array<OnChipPart, 10> on_chip_parts(const TileRow& row) {
  const std::int64_t e = row.element_bytes, br = row.tile_q, bc = row.tile_k;
  const bool backward = row.pass == Pass::backward;
  // Hopper's tiles lie in panels of 64 columns.
  const bool panels = row.family == kSm90;
  const std::int64_t d = panels ? (row.dim + 63) / 64 * 64 : row.dim;
  const std::int64_t dv = panels ? (row.dim_v + 63) / 64 * 64 : row.dim_v;
  // Rows of P and dS are keys, of at least 64 queries.
  const std::int64_t score = row.family == kSm80 ? std::max<std::int64_t>(br, 64) : br;
  const std::int64_t kv = backward ? std::min(row.stages, 1) : row.stages;
  return {{
      {"Q", backward ? row.stages : std::min(row.stages, row.q_stages), br * d * e},
      {"K", kv, bc * d * e},
      {"V", row.v_stages > 0 ? row.v_stages : kv, bc * dv * e},
      {"P", row.p, score * bc * e},
      {"dO", row.dout, br * dv * e},
      {"dS", row.ds, score * bc * e},
      {"dQ", row.dq, br * d * 4},
      {"out", row.out * (row.warps - 4), 2048},
      {"lse and D", backward ? row.stages : 0, br * 8},
      {"alignment", row.family == kSm90 ? 1 : 0, 1024},
  }};
}

constexpr std::int64_t on_chip_bytes(const TileRow& row) {
  std::int64_t sum = 0;
  for (const OnChipPart& part : on_chip_parts(row)) sum += part.count * part.bytes;
  return sum;
}

/// What a tile is chosen by.
struct TileQuery {
  Pass pass = Pass::forward;
  std::int64_t element_bytes = 0, dim = 0, dim_v = 0;
  MaskClass masks = MaskClass::dense;
  std::int64_t budget = 0;  // shared memory of one block
  std::int64_t keys = 0;    // of the longest sequence, as far as rows may depend on it
};

/// The first row of `family` that serves the query, or null.
constexpr const TileRow* find_tile(std::int32_t family, const TileQuery& query) {
  for (const TileRow& row : kTiles) {
    if (row.family == family && row.pass == query.pass &&
        row.element_bytes == query.element_bytes && query.dim <= row.dim &&
        query.dim_v <= row.dim_v && query.masks <= row.masks && query.keys >= row.keys &&
        on_chip_bytes(row) <= query.budget) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace onchip::host
