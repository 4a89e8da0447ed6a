// SPDX-License-Identifier: Apache-2.0
// A plan in words, numbers and a picture, and as JSON.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "host/checked.hpp"
#include "host/gpu_plan.hpp"
#include "host/hopper_plan.hpp"
#include "host/planner.hpp"

namespace onchip::host {
namespace {

constexpr std::int64_t kPictureCells = 32;

// ---- Numbers for people ------------------------------------------------------------------------

/// Three significant digits. std::to_chars does not follow the locale, as printf does.
std::string digits(double value) {
  std::array<char, 64> text{};
  const int decimals = value >= 100 || value == std::floor(value) ? 0 : value >= 10 ? 1 : 2;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::fixed, decimals);
  return end.ec == std::errc() ? std::string(text.data(), end.ptr) : "many";
}

std::string scaled(double value, double base, std::initializer_list<std::string_view> units) {
  const auto* unit = units.begin();
  while (value >= base && unit + 1 != units.end()) {
    value /= base;
    ++unit;
  }
  return digits(value) + ' ' + std::string(*unit);
}

std::string bytes(double value) {
  return scaled(value, 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"});
}

/// Capacities and rates of devices, in the powers of ten of datasheets.
std::string decimal_bytes(double value) {
  return scaled(value, 1000, {"B", "kB", "MB", "GB", "TB", "PB"});
}

std::string flops(double value) {
  return scaled(value, 1000, {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"});
}

std::string seconds(double value) {
  return value < 1 ? scaled(value * 1e9, 1000, {"ns", "us", "ms", "s"}) : digits(value) + " s";
}

std::string ratio(double value) { return digits(value) + "x"; }

std::string count(std::int64_t n, std::string_view one, std::string_view many) {
  return std::to_string(n) + ' ' + std::string(n == 1 ? one : many);
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string line(std::string_view label, const std::string& text) {
  return padded(std::string(label), 10) + text + '\n';
}

/// "label a + b + c = total", over several lines where one would be too long.
std::string sum_lines(std::string_view label, const std::vector<std::string>& terms,
                      const std::string& total) {
  constexpr std::size_t kWidth = 86;
  std::string text, current;
  for (const std::string& term : terms) {
    if (!current.empty() && current.size() + term.size() + 3 > kWidth) {
      text += line(text.empty() ? label : "", current);
      current.clear();
    }
    current += (text.empty() && current.empty() ? "" : current.empty() ? "+ " : " + ") + term;
  }
  return text + line(text.empty() ? label : "", current) + line("", "= " + total);
}

// ---- Words -------------------------------------------------------------------------------------

std::string mask_words(const Problem& p) {
  if (p.window_left < 0 && p.window_right < 0) return "every query sees every key";
  if (p.causal()) return "causal: a query sees the keys up to its own place, ends aligned";
  const auto side = [](std::int64_t keys) {
    return keys < 0 ? std::string("all") : std::to_string(keys);
  };
  return "window: a query sees " + side(p.window_left) + " keys before its own place and " +
         side(p.window_right) + " after it";
}

std::string extras_words(const Problem& p) {
  std::string text;
  const auto add = [&](bool on, std::string_view name) {
    if (on) text += (text.empty() ? "" : ", ") + std::string(name);
  };
  add(p.softcap > 0, "softcap");
  add(p.bias_dtype != DType::none, "bias");
  add(p.has_alibi, "ALiBi");
  add(p.has_sinks, "sinks");
  add(p.dropout_p > 0, "dropout");
  return text;
}

std::string what_words(const Problem& p) {
  const std::string dims = p.dim == p.dim_v ? "head dim " + std::to_string(p.dim)
                                            : "head dims " + std::to_string(p.dim) +
                                                  " (q, k) and " + std::to_string(p.dim_v) + " (v)";
  std::string text =
      line("What", std::string(p.pass == Pass::forward ? "attention" : "attention's gradients") +
                       " of " + count(p.batch, "sequence", "sequences") + ": " +
                       (p.packed ? "up to " : "") + count(p.seqlen_q, "query", "queries") + ", " +
                       (p.paged || p.has_cu_seqlens_k ? "up to " : "") +
                       count(p.seqlen_k, "key", "keys"));
  text += line("", count(p.heads_q, "query head", "query heads") + " over " +
                       count(p.heads_kv, "key/value head", "key/value heads") + ", " + dims + ", " +
                       name_of(p.dtype));
  text += line("", mask_words(p));
  const std::string extras = extras_words(p);
  if (!extras.empty()) text += line("", "with " + extras);
  if (p.packed || p.paged || p.has_seqused_q || p.has_seqused_k) {
    text += line("", "lengths are on the device: costs assume " +
                         std::string(p.packed ? "equal sequences" : "full ones"));
  }
  return text;
}

std::string hopper_words(const Problem& p, const PlanInfo& info) {
  const std::int64_t tiles = hopper_blocks(p, info.tile_q);
  std::string text;
  if (tiles > info.grid) {
    text += line("", std::string("which take ") + (p.packed ? "at most " : "") +
                         count(tiles, "tile", "tiles") + " of queries in turn");
  }
  return text + line("", p.softmax == Softmax::safe
                             ? "softmax relative to the greatest score so far (safe)"
                             : "softmax relative to an earlier great score, which moves where a "
                               "later one is far above it");
}

std::string why_not_hopper(const Problem& p, const PlanInfo& info) {
  if (info.device.family == 80) return "the device's family is 80";
  const char* lacks = hopper_lacks(p);
  if (lacks == nullptr) lacks = info.num_splits > 1 ? "splits" : "tile that fits";
  return std::string("those of Hopper have no ") + lacks;
}

std::string where_words(const Problem& p, const PlanInfo& info) {
  const TileRow* row = tile_of(p, info);
  std::string text = line("Where", info.device.name + ", kernel " + info.kernel);
  if (row == nullptr) {
    text += line(
        "", count(info.grid, "task", "tasks") + " on " + count(info.threads, "thread", "threads"));
  } else {
    text +=
        line("", count(info.grid, "block", "blocks") + " of " + count(info.warps, "warp", "warps") +
                     " on " + count(info.device.units, "multiprocessor", "multiprocessors"));
    const bool hopper = row->family == kSm90;
    if (hopper) text += hopper_words(p, info);
    if (info.device.compute_capability == 90 && !hopper && !row_kernels(p)) {
      text += line("", "kernels for every GPU since Ampere: " + why_not_hopper(p, info));
    }
  }
  if (info.num_splits > 1) {
    text += line("", "keys in " + std::to_string(info.num_splits) + " parts of " +
                         std::to_string(info.split_size) + ", joined by their lse");
  }
  const std::int64_t group = tiling_of(p, info).packed_heads;
  const std::string rows = group > 1 ? std::to_string(info.tile_q) + " rows of Q (" +
                                           std::to_string(group) + " heads share a tile)"
                                     : count(info.tile_q, "query", "queries");
  text += line("Tile", rows + " x " + count(info.tile_k, "key", "keys"));
  return text;
}

std::string on_chip_words(const Problem& p, const PlanInfo& info) {
  const TileRow* row = tile_of(p, info);
  if (row == nullptr) {
    return line("On chip", bytes(static_cast<double>(info.on_chip_bytes)) +
                               " of scratch a thread: tiles of Q, K, V, the scores and their sums");
  }
  if (row_kernels(p)) {
    return line("On chip", "nothing: a warp computes a row, as tensor cores would round float32;") +
           line("", "many times slower than 16 bits and than the time at best below");
  }
  std::vector<std::string> terms;
  for (const OnChipPart& part : on_chip_parts(*row)) {
    if (part.count == 0) continue;
    terms.push_back(std::string(part.name) + ' ' +
                    (part.count > 1 ? std::to_string(part.count) + " x " : "") +
                    bytes(static_cast<double>(part.bytes)));
  }
  return sum_lines("On chip", terms,
                   bytes(static_cast<double>(info.on_chip_bytes)) + " of the " +
                       bytes(static_cast<double>(info.device.on_chip_bytes)) + " a block may have");
}

// ---- The two algorithms side by side -----------------------------------------------------------

std::string row_of(std::string_view label, const std::string& plan, const std::string& standard) {
  std::string text = padded(std::string(label), 26) + plan;
  if (!standard.empty()) text = padded(text, 42) + standard;
  return text + '\n';
}

std::string comparison(const Problem& p, const PlanInfo& info) {
  const Cost& a = info.cost;
  const Cost& b = info.standard;
  const auto bound = [](const Cost& c) { return c.compute_bound ? "arithmetic" : "memory"; };
  std::string text = row_of("", "this plan", "standard (writes S and P)");
  text += row_of("arithmetic", flops(a.flops), flops(b.flops));
  text += row_of("read from memory", bytes(a.bytes_read), bytes(b.bytes_read));
  Tiling uncached = tiling_of(p, info);
  uncached.l2_bytes = 0;
  text += row_of("  if no cache helped", bytes(tiled_traffic(workload_of(p), uncached).read), "");
  text += row_of("written to memory", bytes(a.bytes_written), bytes(b.bytes_written));
  text += row_of("intensity, FLOP a byte", digits(a.intensity), digits(b.intensity));
  text += row_of("limited by", bound(a), bound(b));
  text += row_of("time at best", seconds(a.seconds), seconds(b.seconds));
  text += row_of("memory beside the inputs", bytes(a.peak_bytes), bytes(b.peak_bytes));
  return text;
}

std::string conclusion(const Problem& p, const PlanInfo& info) {
  const double peak = peak_flops(info.device, static_cast<double>(size_of(p.dtype)));
  std::string text;
  if (peak > 0 && info.device.bandwidth > 0) {
    const double ridge = peak / info.device.bandwidth;
    text +=
        info.device.name + " does " + flops(peak) + "/s and moves " +
        decimal_bytes(info.device.bandwidth) + "/s: its ridge is at " + digits(ridge) +
        " FLOP a byte. Below it memory is\nthe limit, above it arithmetic. This plan stands at " +
        digits(info.cost.intensity) + ", the standard algorithm at " +
        digits(info.standard.intensity) + ".\n";
  }
  const double moved = info.cost.bytes_read + info.cost.bytes_written;
  const double standard = info.standard.bytes_read + info.standard.bytes_written;
  if (moved > 0 && standard > 0) {
    text += "The standard algorithm moves " + ratio(standard / moved) + " the bytes";
    if (info.cost.peak_bytes > 0) {
      text +=
          " and holds " + ratio(info.standard.peak_bytes / info.cost.peak_bytes) + " the memory";
    }
    text += ".\n";
  }
  const auto too_much = [&](const Cost& cost) {
    return info.device.memory_bytes > 0 &&
           cost.peak_bytes > static_cast<double>(info.device.memory_bytes);
  };
  if (too_much(info.standard)) {
    text += std::string(too_much(info.cost) ? "Neither fits" : "Only this plan fits") +
            " into the " + decimal_bytes(static_cast<double>(info.device.memory_bytes)) +
            " of the device.\n";
  }
  return text;
}

// ---- The picture -------------------------------------------------------------------------------

/// What the mask leaves of queries [i0, i1) x keys [j0, j1): all of it, none, or a part.
char mark(const Span& span, std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
  // Every distance j - (i + keys - queries) between these two occurs in the rectangle.
  const std::int64_t shift = span.keys - span.queries;
  const std::int64_t low = j0 - (i1 - 1) - shift;
  const std::int64_t high = (j1 - 1) - i0 - shift;
  const bool left = span.left >= 0;
  const bool right = span.right >= 0;
  if ((left && high < -span.left) || (right && low > span.right)) return '.';
  return (left && low < -span.left) || (right && high > span.right) ? '/' : '#';
}

std::string picture(const Problem& p, const PlanInfo& info) {
  const Workload work = workload_of(p);
  const Span& span = work.span;
  if (span.queries <= 0 || span.keys <= 0) return "No queries or no keys: nothing to compute.\n";
  const Tiling tiling = tiling_of(p, info);
  const std::int64_t tile_q = ceil_div(tiling.tile_q, tiling.packed_heads);
  const std::int64_t rows = ceil_div(span.queries, tile_q);
  const std::int64_t columns = ceil_div(span.keys, tiling.tile_k);
  const std::int64_t down = ceil_div(rows, kPictureCells);
  const std::int64_t across = ceil_div(columns, kPictureCells);

  std::string text = "Tiles of one head: " + std::to_string(rows) + " of queries (down) x " +
                     std::to_string(columns) + " of keys (across)\n";
  text += "#  computed whole   /  partly masked   .  skipped";
  if (down > 1 || across > 1) {
    text += "   (one mark: " + std::to_string(down) + " x " + std::to_string(across) + " tiles)";
  }
  text += '\n';
  for (std::int64_t row = 0; row < rows; row += down) {
    const std::int64_t i0 = row * tile_q;
    const std::int64_t i1 = std::min(span.queries, (row + down) * tile_q);
    text += "  ";
    for (std::int64_t column = 0; column < columns; column += across) {
      const std::int64_t j0 = column * tiling.tile_k;
      const std::int64_t j1 = std::min(span.keys, (column + across) * tiling.tile_k);
      text += mark(span, i0, i1, j0, j1);
    }
    text += '\n';
  }
  const double visited = visit(span, tile_q, tiling.tile_k).tiles;
  const double all = static_cast<double>(rows) * static_cast<double>(columns);
  text += digits(100 * visited / all) + "% of the tiles are visited, " +
          digits(100 * visible_scores(span) /
                 (static_cast<double>(span.queries) * static_cast<double>(span.keys))) +
          "% of the scores are visible.\n";
  return text;
}

// ---- JSON --------------------------------------------------------------------------------------

/// Writes one object; nested objects are given as text.
class JsonObject {
 public:
  void text(std::string_view key, std::string_view value) { add(key, quoted(value)); }
  void flag(std::string_view key, bool value) { add(key, value ? "true" : "false"); }
  void object(std::string_view key, const std::string& json) { add(key, json); }

  template <class Number>
  void number(std::string_view key, Number value) {
    // JSON has no infinity and no NaN.
    if constexpr (std::is_floating_point_v<Number>) {
      if (!std::isfinite(value)) return add(key, "null");
    }
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    add(key, std::string(digits.data(), end.ptr));
  }

  [[nodiscard]] std::string done() const { return body_ + '}'; }

 private:
  void add(std::string_view key, std::string_view json) {
    body_ += body_.size() > 1 ? ", " : "";
    body_ += quoted(key) + ": ";
    body_ += json;
  }

  static std::string quoted(std::string_view value) {
    constexpr std::string_view kHex = "0123456789abcdef";
    std::string result = "\"";
    for (const char c : value) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        result += '\\';
        result += c;
      } else if (code < 0x20) {
        result += "\\u00";
        result += kHex[code >> 4U];
        result += kHex[code & 15U];
      } else {
        result += c;
      }
    }
    return result + '"';
  }

  std::string body_ = "{";
};

std::string json_of(const Cost& cost) {
  JsonObject json;
  json.number("flops", cost.flops);
  json.number("bytes_read", cost.bytes_read);
  json.number("bytes_written", cost.bytes_written);
  json.number("intensity", cost.intensity);
  json.number("seconds", cost.seconds);
  json.flag("compute_bound", cost.compute_bound);
  json.number("peak_bytes", cost.peak_bytes);
  return json.done();
}

std::string json_of(const DeviceInfo& device) {
  JsonObject json;
  json.text("name", device.name);
  json.text("type", device.type == DeviceType::cpu ? "cpu" : "cuda");
  json.number("index", device.index);
  json.number("compute_capability", device.compute_capability);
  json.number("family", device.family);
  json.number("units", device.units);
  json.number("on_chip_bytes", device.on_chip_bytes);
  json.number("l2_bytes", device.l2_bytes);
  json.number("memory_bytes", device.memory_bytes);
  json.number("bandwidth", device.bandwidth);
  json.number("flops_16bit", device.flops_16bit);
  json.number("flops_float32", device.flops_float32);
  json.number("flops_float64", device.flops_float64);
  return json.done();
}

}  // namespace

std::string explain(const detail::PlanImpl& plan) {
  const Problem& p = plan.problem;
  const PlanInfo& info = plan.info;
  std::string text = what_words(p) + where_words(p, info) + on_chip_words(p, info);
  if (info.workspace_bytes > 0) {
    text += line("Workspace", bytes(static_cast<double>(info.workspace_bytes)));
  }
  return text + '\n' + comparison(p, info) + '\n' + conclusion(p, info) + '\n' + picture(p, info);
}

std::string to_json(const detail::PlanImpl& plan) {
  const PlanInfo& info = plan.info;
  JsonObject json;
  json.text("pass", info.pass == Pass::forward ? "forward" : "backward");
  json.object("device", json_of(info.device));
  json.text("backend", info.backend);
  json.text("kernel", info.kernel);
  json.number("tile_q", info.tile_q);
  json.number("tile_k", info.tile_k);
  json.number("stages", info.stages);
  json.number("warps", info.warps);
  json.number("on_chip_bytes", info.on_chip_bytes);
  json.number("grid", info.grid);
  json.number("num_splits", info.num_splits);
  json.number("split_size", info.split_size);
  json.number("threads", info.threads);
  json.number("workspace_bytes", info.workspace_bytes);
  json.object("cost", json_of(info.cost));
  json.object("standard", json_of(info.standard));
  return json.done();
}

}  // namespace onchip::host
