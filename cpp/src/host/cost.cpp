// SPDX-License-Identifier: Apache-2.0
#include "host/cost.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "onchip/io_model.hpp"

namespace onchip::host {
namespace {

__extension__ using Wide = __int128;  // products of two lengths and a tile pass 64 bits

Wide floor_div(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }
Wide ceil_div(Wide a, Wide b) { return -floor_div(-a, b); }

/// sum over 0 <= t < n of floor((a t + b) / m), for a, b >= 0. Swapping the axes of the lattice
/// points under the line makes the slope smaller, as in Euclid's algorithm.
Wide floor_sum(Wide n, Wide a, Wide b, Wide m) {
  Wide sum = 0;
  while (n > 0) {
    sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
    a %= m;
    b %= m;
    const Wide top = a * n + b;
    if (top < m) break;
    n = top / m;
    b = top % m;
    std::swap(a, m);
  }
  return sum;
}

struct ClampedSum {
  Wide sum = 0;
  Wide at_top = 0;  // terms that equal `high`
};

/// sum over 0 <= t < n of clamp(floor((a t + b) / m), 0, high), for a > 0.
ClampedSum clamped_sum(Wide n, Wide a, Wide b, Wide m, Wide high) {
  const Wide first = std::clamp<Wide>(ceil_div(-b, a), 0, n);
  const Wide last = std::clamp<Wide>(ceil_div(high * m - b, a), first, n);
  return {floor_sum(last - first, a, a * first + b, m) + high * (n - last), n - last};
}

double fraction_missed(double cache, double working_set) {
  return working_set > cache ? 1.0 - cache / working_set : 0.0;
}

/// Bytes of a stream that is read `all` times in total, of which `once` is unavoidable.
double through_cache(double once, double all, double missed) {
  return once + std::max(all - once, 0.0) * missed;
}

Traffic forward_traffic(const Workload& w, const Tiling& t) {
  const double heads = w.heads_q / static_cast<double>(t.packed_heads);
  const double row = (w.dim + w.dim_v) * w.element_bytes;
  const double all = w.batch * heads * visit(w.span, t.tile_q, t.tile_k, t.packed_heads).keys * row;
  const double once = w.batch * w.heads_kv * visit(w.span, w.span.queries, t.tile_k).keys * row;
  const double missed = fraction_missed(t.l2_bytes, static_cast<double>(w.span.keys) * row);
  const auto splits = static_cast<double>(t.num_splits);
  const double partials =
      t.num_splits > 1 ? splits * w.total_q * w.heads_q * (w.dim_v + 1) * w.stats_bytes : 0.0;
  Traffic traffic;
  traffic.read = splits * w.q_bytes() + through_cache(once, all, missed) + w.bias_bytes + partials;
  traffic.written = w.out_bytes() + (w.writes_lse ? w.lse_bytes() : 0.0) + partials;
  return traffic;
}

/// One side of the problem in backward: what a row brings in, and the sums it takes out.
struct Side {
  double rows = 0;  // of all sequences and heads
  double in = 0;    // bytes read with a row
  double sums = 0;  // gradient elements of a row
};

Traffic backward_traffic(const Workload& w, const Tiling& t) {
  const double e = w.element_bytes;
  const double sum_bytes = t.float32_accumulators ? std::max(e, w.stats_bytes) : e;
  const Side queries = {w.total_q * w.heads_q, (w.dim + w.dim_v) * e + 2 * w.stats_bytes, w.dim};
  const Side keys = {w.total_k * w.heads_kv, (w.dim + w.dim_v) * e, w.dim + w.dim_v};
  const Side& inner = t.keys_outer ? queries : keys;
  const Span span = t.keys_outer ? w.span.transposed() : w.span;
  const std::int64_t outer_tile = t.keys_outer ? t.tile_k : t.tile_q;
  const std::int64_t inner_tile = t.keys_outer ? t.tile_q : t.tile_k;

  // Every visit to an inner row reads it and adds to its sums; caches keep both for one head.
  const double heads = t.keys_outer ? w.heads_q : w.heads_q / static_cast<double>(t.packed_heads);
  const double inner_heads = t.keys_outer ? w.heads_q : w.heads_kv;
  const std::int64_t group = t.keys_outer ? 1 : t.packed_heads;
  const double all = w.batch * heads * visit(span, outer_tile, inner_tile, group).keys;
  const double once = w.batch * inner_heads * visit(span, span.queries, inner_tile).keys;
  const double per_head = static_cast<double>(span.keys) * (inner.in + inner.sums * sum_bytes);
  const double missed = fraction_missed(t.l2_bytes, per_head);

  Traffic traffic;
  const double sums = inner.rows * inner.sums * sum_bytes;
  const double adds = through_cache(0, all * inner.sums * sum_bytes, missed);
  traffic.read = through_cache(once * inner.in, all * inner.in, missed) + adds;
  traffic.written = adds + sums;
  if (t.float32_accumulators) {  // converted by a last pass
    traffic.read += sums;
    traffic.written += inner.rows * inner.sums * e;
  }
  // The outer side: read once and written once, K and V once more for each query head of a group.
  if (t.keys_outer) {
    const double kv_missed =
        fraction_missed(t.l2_bytes, static_cast<double>(w.span.keys) * keys.in);
    const double kv = w.k_bytes() + w.v_bytes();
    const double group_size = w.heads_q / w.heads_kv;
    traffic.read += through_cache(kv, kv * group_size, kv_missed);
    if (group_size > 1) {
      const double kv_sums = keys.rows * keys.sums * sum_bytes;
      const double kv_adds = through_cache(0, kv_sums * group_size, kv_missed);
      traffic.read += kv_sums + kv_adds;
      traffic.written += kv_sums + kv_adds;
    }
    traffic.read += 2 * w.out_bytes();  // a first pass forms D = rowsum(dO * O)
    traffic.written += kv + w.lse_bytes();
  } else {
    traffic.read += queries.rows * queries.in + w.out_bytes();
    traffic.written += w.q_bytes();
  }
  traffic.read += w.bias_bytes;
  traffic.written += w.dbias_bytes;
  return traffic;
}

/// Fills in what follows from FLOP and bytes.
void finish(Cost& cost, const DeviceInfo& device, double element_bytes) {
  const double bytes = cost.bytes_read + cost.bytes_written;
  const double peak = peak_flops(device, element_bytes);
  const double compute = peak > 0 ? cost.flops / peak : 0.0;
  const double memory = device.bandwidth > 0 ? bytes / device.bandwidth : 0.0;
  cost.intensity = bytes > 0 ? cost.flops / bytes : 0.0;
  cost.seconds = std::max(compute, memory);
  cost.compute_bound = compute > memory;
}

double output_bytes(const Workload& w) {
  return w.pass == Pass::forward ? w.out_bytes()
                                 : w.q_bytes() + w.k_bytes() + w.v_bytes() + w.dbias_bytes;
}

}  // namespace

Visits visit(const Span& span, std::int64_t tile_q, std::int64_t tile_k, std::int64_t group) {
  if (span.queries <= 0 || span.keys <= 0) return {};
  const Wide queries = span.queries, keys = span.keys, br = tile_q, bc = tile_k;
  const Wide left = span.left < 0 ? queries + keys : std::min<Wide>(span.left, queries + keys);
  const Wide right = span.right < 0 ? queries + keys : std::min<Wide>(span.right, queries + keys);
  const Wide shift = keys - queries, rows = queries * group, width = group * bc;
  const Wide tiles_q = ceil_div(rows, br), tiles_k = ceil_div(keys, bc);
  // Tile t holds the queries floor(t br / group) <= i < ceil((t + 1) br / group); nested roundings
  // join into one. The first key of the first query is always before `keys`, and past the last
  // query the end is clamped to `keys`.
  const ClampedSum end =
      clamped_sum(tiles_q, br, br + group * (shift + right) + width - 1, width, tiles_k);
  const ClampedSum begin = clamped_sum(tiles_q, br, group * (shift - left), width, tiles_k);
  const Wide tiles = end.sum - begin.sum;
  return {static_cast<double>(tiles),
          static_cast<double>(tiles * bc - end.at_top * (tiles_k * bc - keys))};
}

double visible_scores(const Span& span) { return visit(span, 1, 1).keys; }

double Workload::scores_bytes() const {
  return batch * heads_q * static_cast<double>(span.queries) * static_cast<double>(span.keys) *
         element_bytes;
}

Workload workload_of(const Problem& p) {
  Workload w;
  w.pass = p.pass;
  w.batch = static_cast<double>(p.batch);
  w.heads_q = static_cast<double>(p.heads_q);
  w.heads_kv = static_cast<double>(p.heads_kv);
  w.span = {p.seqlen_q, p.seqlen_k, p.window_left, p.window_right};
  if (p.packed && p.batch > 0) {
    const auto share = [&](std::int64_t total) { return (total + p.batch - 1) / p.batch; };
    w.span.queries = std::min(p.seqlen_q, share(p.total_q));
    if (!p.paged) w.span.keys = std::min(p.seqlen_k, share(p.total_k));
  }
  w.total_q = static_cast<double>(p.total_q);
  w.total_k = static_cast<double>(p.paged ? p.batch * p.seqlen_k : p.total_k);
  w.dim = static_cast<double>(p.dim);
  w.dim_v = static_cast<double>(p.dim_v);
  w.element_bytes = static_cast<double>(size_of(p.dtype));
  w.stats_bytes = static_cast<double>(size_of(p.stats_dtype));
  w.writes_lse = p.has_lse;
  const double bias =
      static_cast<double>(p.bias_shape.batch) * static_cast<double>(p.bias_shape.head) *
      static_cast<double>(p.bias_shape.row) * static_cast<double>(p.bias_shape.col) *
      static_cast<double>(size_of(p.bias_dtype));
  w.bias_bytes = bias;
  w.dbias_bytes = p.has_dbias ? bias : 0.0;
  return w;
}

double tiled_flops(const Workload& w) {
  // Forward S = Q K^T and O = P V; backward S again, dP = dO V^T, dV, dQ and dK.
  const double per_score =
      w.pass == Pass::forward ? 2 * (w.dim + w.dim_v) : 6 * w.dim + 4 * w.dim_v;
  return w.batch * w.heads_q * visible_scores(w.span) * per_score;
}

double standard_flops(const Workload& w) {
  const double per_score = (w.pass == Pass::forward ? 2 : 4) * (w.dim + w.dim_v);
  return w.batch * w.heads_q * visible_scores(w.span) * per_score;
}

Traffic tiled_traffic(const Workload& work, const Tiling& tiling) {
  if (work.heads_kv <= 0) return {};
  return work.pass == Pass::forward ? forward_traffic(work, tiling)
                                    : backward_traffic(work, tiling);
}

Traffic standard_traffic(const Workload& w) {
  const double inputs = w.q_bytes() + w.k_bytes() + w.v_bytes();
  if (w.pass == Pass::forward) {
    return {inputs + 2 * w.scores_bytes() + w.bias_bytes, w.out_bytes() + 2 * w.scores_bytes()};
  }
  // dV = P^T dO; dP = dO V^T; dS from P and dP; dQ = dS K; dK = dS^T Q: P and dS are read twice, dP
  // once; dP and dS are written.
  return {inputs + 2 * w.out_bytes() + 5 * w.scores_bytes(),
          inputs + 2 * w.scores_bytes() + w.dbias_bytes};
}

Cost tiled_cost(const Workload& work, const Tiling& tiling, double workspace_bytes,
                const DeviceInfo& device) {
  const Traffic traffic = tiled_traffic(work, tiling);
  Cost cost;
  cost.flops = tiled_flops(work);
  cost.bytes_read = traffic.read;
  cost.bytes_written = traffic.written;
  cost.peak_bytes = output_bytes(work) + workspace_bytes;
  if (work.pass == Pass::forward && work.writes_lse) cost.peak_bytes += work.lse_bytes();
  finish(cost, device, work.element_bytes);
  return cost;
}

Cost standard_cost(const Workload& work, const DeviceInfo& device) {
  const Traffic traffic = standard_traffic(work);
  Cost cost;
  cost.flops = standard_flops(work);
  cost.bytes_read = traffic.read;
  cost.bytes_written = traffic.written;
  // Forward holds S and P; backward holds P, dP and dS.
  const double matrices = work.pass == Pass::forward ? 2 : 3;
  cost.peak_bytes = output_bytes(work) + matrices * work.scores_bytes();
  finish(cost, device, work.element_bytes);
  return cost;
}

double peak_flops(const DeviceInfo& device, double element_bytes) {
  if (element_bytes >= 8) return device.flops_float64;
  return element_bytes >= 4 ? device.flops_float32 : device.flops_16bit;
}

namespace {

void require(bool holds, const char* what, std::int64_t value, const char* expected) {
  if (holds) return;
  throw Error(ErrorCode::invalid_argument, std::string("io_model: ") + what + " is " +
                                               std::to_string(value) + ", expected " + expected);
}

IoBytes to_io(const Traffic& traffic) { return {traffic.read, traffic.written}; }

}  // namespace
}  // namespace onchip::host

namespace onchip {

IoModel io_model(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                 std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t dim, std::int64_t dim_v,
                 std::int64_t element_bytes, std::int64_t tile_q, std::int64_t tile_k,
                 bool causal) {
  using host::require;
  require(batch >= 0, "batch", batch, "0 or more");
  require(heads_q >= 1, "heads_q", heads_q, "1 or more");
  require(heads_kv >= 1 && heads_q % heads_kv == 0, "heads_kv", heads_kv, "a divisor of heads_q");
  require(seqlen_q >= 0, "seqlen_q", seqlen_q, "0 or more");
  require(seqlen_k >= 0, "seqlen_k", seqlen_k, "0 or more");
  require(dim >= 1, "dim", dim, "1 or more");
  require(dim_v >= 1, "dim_v", dim_v, "1 or more");
  require(element_bytes == 2 || element_bytes == 4 || element_bytes == 8, "element_bytes",
          element_bytes, "2, 4 or 8");
  require(tile_q >= 1, "tile_q", tile_q, "1 or more");
  require(tile_k >= 1, "tile_k", tile_k, "1 or more");

  host::Workload work;
  work.batch = static_cast<double>(batch);
  work.heads_q = static_cast<double>(heads_q);
  work.heads_kv = static_cast<double>(heads_kv);
  work.span = {seqlen_q, seqlen_k, -1, causal ? 0 : -1};
  work.total_q = work.batch * static_cast<double>(seqlen_q);
  work.total_k = work.batch * static_cast<double>(seqlen_k);
  work.dim = static_cast<double>(dim);
  work.dim_v = static_cast<double>(dim_v);
  work.element_bytes = static_cast<double>(element_bytes);
  work.stats_bytes = element_bytes == 8 ? 8 : 4;
  host::Tiling tiling;
  tiling.tile_q = tile_q;
  tiling.tile_k = tile_k;
  tiling.float32_accumulators = element_bytes == 2;

  IoModel model;
  model.q_bytes = work.q_bytes();
  model.k_bytes = work.k_bytes();
  model.v_bytes = work.v_bytes();
  model.out_bytes = work.out_bytes();
  model.lse_bytes = work.lse_bytes();
  model.scores_bytes = work.scores_bytes();
  model.tile_bytes = static_cast<double>(tile_q) * static_cast<double>(tile_k) *
                     static_cast<double>(element_bytes);
  const double heads = work.batch * work.heads_q;
  model.visible_scores = heads * host::visible_scores(work.span);
  model.tiles_visited = heads * host::visit(work.span, tile_q, tile_k).tiles;
  model.tiles = heads * host::visit({seqlen_q, seqlen_k, -1, -1}, tile_q, tile_k).tiles;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    work.pass = pass;
    const bool forward = pass == Pass::forward;
    (forward ? model.forward_flops : model.backward_flops) = host::tiled_flops(work);
    (forward ? model.standard_forward : model.standard_backward) =
        host::to_io(host::standard_traffic(work));
    (forward ? model.tiled_forward : model.tiled_backward) =
        host::to_io(host::tiled_traffic(work, tiling));
  }
  return model;
}

}  // namespace onchip
