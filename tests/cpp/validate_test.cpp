// SPDX-License-Identifier: Apache-2.0
// Bad inputs: each throws the right code, names the argument, says what is wrong, and writes
// nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "scene.hpp"

namespace {

using onchip::Attention;
using onchip::DeviceType;
using onchip::DType;
using onchip::ErrorCode;
using onchip::Pass;
using onchip::TensorView;
using scene::Kind;
using scene::Scene;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kHuge = std::int64_t{1} << 61;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

using Change = void (*)(Attention&);

struct Bad {
  Kind kind;
  Pass pass;
  const char* argument;
  const char* says;
  Change change;
  ErrorCode code = ErrorCode::invalid_argument;
};

constexpr Pass kForward = Pass::forward;
constexpr Pass kBackward = Pass::backward;

std::int32_t* integers(const TensorView& view) { return static_cast<std::int32_t*>(view.data); }

/// What planning refuses: shapes, dtypes, strides, devices and options.
const std::vector<Bad>& planning_table() {
  static const std::vector<Bad> table = {
      // Presence.
      {Kind::dense, kForward, "q", "not given", [](Attention& a) { a.q = {}; }},
      {Kind::dense, kForward, "k", "not given", [](Attention& a) { a.k = {}; }},
      {Kind::dense, kForward, "v", "not given", [](Attention& a) { a.v = {}; }},
      {Kind::dense, kForward, "out", "not given", [](Attention& a) { a.out = {}; }},
      {Kind::dense, kBackward, "out", "not given", [](Attention& a) { a.out = {}; }},
      {Kind::dense, kBackward, "lse", "not given", [](Attention& a) { a.lse = {}; }},
      {Kind::dense, kBackward, "dout", "not given", [](Attention& a) { a.dout = {}; }},
      {Kind::dense, kBackward, "dq", "not given", [](Attention& a) { a.dq = {}; }},
      {Kind::dense, kBackward, "dk", "not given", [](Attention& a) { a.dk = {}; }},
      {Kind::dense, kBackward, "dv", "not given", [](Attention& a) { a.dv = {}; }},
      {Kind::dense, kBackward, "dbias", "given without bias", [](Attention& a) { a.bias = {}; }},
      {Kind::dense, kBackward, "dsinks", "given without sinks",
       [](Attention& a) { a.sinks = {}; }},
      {Kind::dense, kForward, "cu_seqlens_k", "without cu_seqlens_q",
       [](Attention& a) { a.cu_seqlens_k = scene::packed_lengths(); }},
      {Kind::packed, kForward, "cu_seqlens_q", "not given, but q has 3 axes",
       [](Attention& a) { a.cu_seqlens_q = {}; }},
      {Kind::packed, kForward, "cu_seqlens_k", "not given",
       [](Attention& a) { a.cu_seqlens_k = {}; }},
      {Kind::paged, kForward, "seqused_k", "needs the lengths",
       [](Attention& a) { a.seqused_k = {}; }},
      {Kind::paged, kForward, "cu_seqlens_k", "given with block_table",
       [](Attention& a) { a.cu_seqlens_k = scene::packed_lengths(); }},
      // Number of axes.
      {Kind::dense, kForward, "q", "shape is (1, 2, 5, 4, 8)",
       [](Attention& a) { a.q = scene::view_of_shape({1, 2, 5, 4, 8}); }},
      {Kind::dense, kForward, "q", "shape is (8,)",
       [](Attention& a) { a.q = scene::view_of_shape({8}); }},
      {Kind::dense, kForward, "q", "ndim is 6", [](Attention& a) { a.q.ndim = 6; }},
      {Kind::dense, kForward, "q", "ndim is -1", [](Attention& a) { a.q.ndim = -1; }},
      {Kind::dense, kForward, "k", "ndim is 99", [](Attention& a) { a.k.ndim = 99; }},
      {Kind::dense, kForward, "bias", "ndim is -4", [](Attention& a) { a.bias.ndim = -4; }},
      {Kind::dense, kForward, "lse", "ndim is -2", [](Attention& a) { a.lse.ndim = -2; }},
      {Kind::dense, kForward, "k", "shape is (2, 7, 2)", [](Attention& a) { a.k.ndim = 3; }},
      {Kind::dense, kForward, "v", "shape is (2, 7, 2)", [](Attention& a) { a.v.ndim = 3; }},
      {Kind::packed, kForward, "q", "(total_q, heads_q, D)",
       [](Attention& a) { a.q = scene::view_of_shape({1, 9, 4, 8}); }},
      {Kind::packed, kForward, "cu_seqlens_q", "(B + 1,)",
       [](Attention& a) { a.cu_seqlens_q.ndim = 2; }},
      {Kind::paged, kForward, "block_table", "(B, max_pages)",
       [](Attention& a) { a.block_table.ndim = 1; }},
      // Extents.
      {Kind::dense, kForward, "q", "shape is (2, -5, 4, 8)",
       [](Attention& a) { a.q.shape[1] = -5; }},
      {Kind::dense, kForward, "q", "at least one head", [](Attention& a) { a.q.shape[2] = 0; }},
      {Kind::dense, kForward, "q", "D >= 1", [](Attention& a) { a.q.shape[3] = 0; }},
      {Kind::dense, kForward, "k", "(3, 7, 2, 8)", [](Attention& a) { a.k.shape[0] = 3; }},
      {Kind::dense, kForward, "k", "heads_kv 3 does not divide heads_q 4",
       [](Attention& a) { a.k.shape[2] = 3; }},
      {Kind::dense, kForward, "k", "heads_kv 8 does not divide heads_q 4",
       [](Attention& a) { a.k.shape[2] = 8; }},
      {Kind::dense, kForward, "k", "heads_kv 0", [](Attention& a) { a.k.shape[2] = 0; }},
      {Kind::dense, kForward, "k", "expected (B, Sk, heads_kv, D) = (2, any, any, 8)",
       [](Attention& a) { a.k.shape[3] = 7; }},
      {Kind::dense, kForward, "v", "(2, 6, 2, 6)", [](Attention& a) { a.v.shape[1] = 6; }},
      {Kind::dense, kForward, "v", "(2, 7, 4, 6)", [](Attention& a) { a.v.shape[2] = 4; }},
      {Kind::dense, kForward, "v", "Dv >= 1", [](Attention& a) { a.v.shape[3] = 0; }},
      {Kind::dense, kForward, "out", "(2, 5, 4, 8)", [](Attention& a) { a.out = a.q; }},
      {Kind::dense, kForward, "lse", "(2, 5, 4)",
       [](Attention& a) { std::swap(a.lse.shape[1], a.lse.shape[2]); }},
      {Kind::dense, kForward, "bias", "(2, 4, 5, 6)", [](Attention& a) { a.bias.shape[3] = 6; }},
      {Kind::dense, kForward, "bias", "each axis of (2, 4, 5, 7) or 1",
       [](Attention& a) { a.bias.shape[1] = 2; }},
      {Kind::dense, kForward, "alibi_slopes", "(heads_q,) or (B, heads_q)",
       [](Attention& a) { a.alibi_slopes.shape[0] = 2; }},
      {Kind::dense, kForward, "alibi_slopes", "= (2, 4)",
       [](Attention& a) { a.alibi_slopes = scene::view_of_shape({3, 4}); }},
      {Kind::dense, kForward, "sinks", "(2,)", [](Attention& a) { a.sinks.shape[0] = 2; }},
      {Kind::dense, kBackward, "dout", "(2, 5, 4, 8)", [](Attention& a) { a.dout = a.q; }},
      {Kind::dense, kBackward, "dlse", "(2, 4, 4)", [](Attention& a) { a.dlse.shape[2] = 4; }},
      {Kind::dense, kBackward, "dq", "(2, 5, 4, 7)", [](Attention& a) { a.dq.shape[3] = 7; }},
      {Kind::dense, kBackward, "dk", "(2, 7, 4, 8)", [](Attention& a) { a.dk.shape[2] = 4; }},
      {Kind::dense, kBackward, "dv", "(2, 7, 2, 8)", [](Attention& a) { a.dv.shape[3] = 8; }},
      {Kind::dense, kBackward, "dbias", "(1, 4, 5, 7)",
       [](Attention& a) { a.dbias.shape[0] = 1; }},
      {Kind::dense, kBackward, "dsinks", "(1,)", [](Attention& a) { a.dsinks.shape[0] = 1; }},
      {Kind::packed, kForward, "cu_seqlens_k", "expected (B + 1,) = (3,)",
       [](Attention& a) { a.cu_seqlens_k.shape[0] = 4; }},
      {Kind::packed, kForward, "cu_seqlens_q", "(0,)",
       [](Attention& a) { a.cu_seqlens_q.shape[0] = 0; }},
      {Kind::packed, kForward, "seqused_q", "(3,)", [](Attention& a) { a.seqused_q.shape[0] = 3; }},
      {Kind::packed, kForward, "lse", "(heads_q, total_q)",
       [](Attention& a) { std::swap(a.lse.shape[0], a.lse.shape[1]); }},
      {Kind::paged, kForward, "block_table", "(3, 2)",
       [](Attention& a) { a.block_table.shape[0] = 3; }},
      {Kind::paged, kForward, "k", "page_size is 0",
       [](Attention& a) { a.k.shape[1] = a.v.shape[1] = 0; }},
      {Kind::paged, kForward, "seqused_k", "(1,)", [](Attention& a) { a.seqused_k.shape[0] = 1; }},
      // Extents and strides that no memory has.
      {Kind::dense, kForward, "q", "2^62 bytes", [](Attention& a) { a.q.shape[0] = kHuge; }},
      {Kind::dense, kForward, "q", "2^62 bytes",
       [](Attention& a) { a.q.shape[0] = kMax, a.q.shape[1] = kMax; }},
      {Kind::dense, kForward, "q", "2^62 bytes",
       [](Attention& a) { a.q.shape[0] = 0, a.q.shape[1] = kMax, a.q.shape[2] = kMax; }},
      {Kind::dense, kForward, "q", "2^62 bytes", [](Attention& a) { a.q.stride[0] = kMax; }},
      {Kind::dense, kForward, "q", "2^62 bytes", [](Attention& a) { a.q.stride[0] = kMin; }},
      {Kind::dense, kForward, "k", "2^62 bytes", [](Attention& a) { a.k.stride[1] = -kHuge; }},
      {Kind::dense, kForward, "k", "2^48 elements",
       [](Attention& a) {
         a.k.shape[1] = a.v.shape[1] = std::int64_t{1} << 48;
         a.k.stride[1] = a.v.stride[1] = 0;
       }},
      {Kind::dense, kForward, "bias", "2^62 bytes", [](Attention& a) { a.bias.stride[2] = kMax; }},
      {Kind::dense, kForward, "lse", "2^62 bytes", [](Attention& a) { a.lse.stride[0] = kMin; }},
      {Kind::packed, kForward, "cu_seqlens_q", "2^62 bytes",
       [](Attention& a) { a.cu_seqlens_q.shape[0] = kHuge; }},
      {Kind::packed, kForward, "cu_seqlens_q", "2^48 sequences",
       [](Attention& a) {
         a.cu_seqlens_q.shape[0] = std::int64_t{1} << 48;
         a.cu_seqlens_q.stride[0] = 0;
       }},
      {Kind::packed, kForward, "split_size", "2^48",
       [](Attention& a) {
         a.cu_seqlens_q.shape[0] = a.cu_seqlens_k.shape[0] = (std::int64_t{1} << 45) + 1;
         a.cu_seqlens_q.stride[0] = a.cu_seqlens_k.stride[0] = 0;
         a.seqused_q = a.seqused_k = a.bias = {};
         a.options.split_size = 1;
       }},
      {Kind::paged, kForward, "block_table", "2^48 keys",
       [](Attention& a) {
         a.block_table.shape[1] = std::int64_t{1} << 46;
         a.block_table.stride[1] = 0;
       }},
      // Types of element.
      {Kind::dense, kForward, "q", "dtype is int32",
       [](Attention& a) { a.q.dtype = DType::int32; }},
      {Kind::dense, kForward, "q", "dtype is none", [](Attention& a) { a.q.dtype = DType::none; }},
      {Kind::dense, kForward, "q", "dtype is 77, expected float32, float16, bfloat16 or float64",
       [](Attention& a) { a.q.dtype = static_cast<DType>(77); }},
      {Kind::dense, kForward, "k", "dtype is float16, expected float32",
       [](Attention& a) { a.k.dtype = DType::float16; }},
      {Kind::dense, kForward, "v", "dtype is bfloat16, expected float32",
       [](Attention& a) { a.v.dtype = DType::bfloat16; }},
      {Kind::dense, kForward, "out", "dtype is float64, expected float32",
       [](Attention& a) { a.out.dtype = DType::float64; }},
      {Kind::dense, kForward, "lse", "dtype is float16, expected float32 (statistics)",
       [](Attention& a) { a.lse.dtype = DType::float16; }},
      {Kind::dense, kForward, "bias", "dtype is float16",
       [](Attention& a) { a.bias.dtype = DType::float16; }},
      {Kind::dense, kForward, "alibi_slopes", "dtype is float64",
       [](Attention& a) { a.alibi_slopes.dtype = DType::float64; }},
      {Kind::dense, kForward, "sinks", "dtype is int32",
       [](Attention& a) { a.sinks.dtype = DType::int32; }},
      {Kind::dense, kBackward, "dlse", "dtype is bfloat16",
       [](Attention& a) { a.dlse.dtype = DType::bfloat16; }},
      {Kind::dense, kBackward, "dbias", "dtype is float16",
       [](Attention& a) { a.dbias.dtype = DType::float16; }},
      {Kind::dense, kBackward, "dq", "dtype is float64",
       [](Attention& a) { a.dq.dtype = DType::float64; }},
      {Kind::packed, kForward, "cu_seqlens_k", "expected int32",
       [](Attention& a) { a.cu_seqlens_k.dtype = DType::float32; }},
      {Kind::paged, kForward, "block_table", "expected int32",
       [](Attention& a) { a.block_table.dtype = DType::uint8; }},
      // Strides.
      {Kind::dense, kForward, "q", "stride of the last axis is 2, expected 1",
       [](Attention& a) { a.q.stride[3] = 2; }},
      {Kind::dense, kForward, "k", "stride of the last axis is -1",
       [](Attention& a) { a.k.stride[3] = -1; }},
      {Kind::dense, kForward, "v", "stride of the last axis is 0",
       [](Attention& a) { a.v.stride[3] = 0; }},
      {Kind::dense, kForward, "out", "stride of the last axis is 3",
       [](Attention& a) { a.out.stride[3] = 3; }},
      {Kind::dense, kForward, "out", "share memory", [](Attention& a) { a.out.stride[0] = 0; }},
      {Kind::dense, kForward, "out", "share memory", [](Attention& a) { a.out.stride[2] = 5; }},
      {Kind::dense, kForward, "out", "share memory", [](Attention& a) { a.out.stride[1] = -6; }},
      {Kind::dense, kForward, "lse", "share memory", [](Attention& a) { a.lse.stride[2] = 0; }},
      {Kind::dense, kBackward, "dk", "share memory", [](Attention& a) { a.dk.stride[2] = 0; }},
      {Kind::dense, kBackward, "dbias", "share memory",
       [](Attention& a) { a.dbias.stride[0] = a.dbias.stride[1]; }},
      {Kind::dense, kBackward, "dsinks", "share memory",
       [](Attention& a) { a.dsinks.stride[0] = 0; }},
      // Devices.
      {Kind::dense, kForward, "k", "lies on CUDA device 1, expected the CPU",
       [](Attention& a) {
         a.k.device = {DeviceType::cuda, 1};
       }},
      {Kind::dense, kForward, "sinks", "lies on CUDA device 0",
       [](Attention& a) {
         a.sinks.device = {DeviceType::cuda, 0};
       }},
      {Kind::packed, kForward, "cu_seqlens_q", "lies on CUDA device 0",
       [](Attention& a) {
         a.cu_seqlens_q.device = {DeviceType::cuda, 0};
       }},
      {Kind::dense, kForward, "v", "lies on CPU 3, expected the CPU as q",
       [](Attention& a) { a.v.device.index = 3; }},
      {Kind::dense, kForward, "q", "device type is 7",
       [](Attention& a) { a.q.device.type = static_cast<DeviceType>(7); }},
      // Options.
      {Kind::dense, kForward, "scale", "is nan", [](Attention& a) { a.options.scale = kNan; }},
      {Kind::dense, kForward, "scale", "is -inf",
       [](Attention& a) { a.options.scale = -kInfinity; }},
      {Kind::dense, kForward, "scale", "is 1e+30", [](Attention& a) { a.options.scale = 1e30; }},
      {Kind::dense, kForward, "softcap", "is -1", [](Attention& a) { a.options.softcap = -1; }},
      {Kind::dense, kForward, "softcap", "is nan", [](Attention& a) { a.options.softcap = kNan; }},
      {Kind::dense, kForward, "softcap", "is inf",
       [](Attention& a) { a.options.softcap = kInfinity; }},
      {Kind::dense, kForward, "softcap", "is 1e-40",
       [](Attention& a) { a.options.softcap = 1e-40; }},
      {Kind::dense, kForward, "dropout_p", "is 1,", [](Attention& a) { a.options.dropout_p = 1; }},
      {Kind::dense, kForward, "dropout_p", "is -0.1",
       [](Attention& a) { a.options.dropout_p = -0.1; }},
      {Kind::dense, kForward, "dropout_p", "is nan",
       [](Attention& a) { a.options.dropout_p = kNan; }},
      {Kind::dense, kForward, "dropout_p", "below 65536",
       [](Attention& a) { a.options.dropout_p = 0.999999; }},
      {Kind::dense, kForward, "window_left", "is -2",
       [](Attention& a) { a.options.window_left = -2; }},
      {Kind::dense, kForward, "window_right", "is -9",
       [](Attention& a) { a.options.window_right = -9; }},
      {Kind::dense, kForward, "num_splits", "is -1",
       [](Attention& a) { a.options.num_splits = -1; }},
      {Kind::dense, kForward, "split_size", "is -1",
       [](Attention& a) { a.options.split_size = -1; }},
      {Kind::dense, kForward, "softmax", "is 2, expected 0 (automatic) or 1 (safe)",
       [](Attention& a) { a.options.softmax = static_cast<onchip::Softmax>(2); }},
      {Kind::packed, kBackward, "softmax", "is -1",
       [](Attention& a) { a.options.softmax = static_cast<onchip::Softmax>(-1); }},
      {Kind::packed, kForward, "max_seqlen_q", "is -1",
       [](Attention& a) { a.options.max_seqlen_q = -1; }},
      {Kind::packed, kForward, "max_seqlen_k", "is -3",
       [](Attention& a) { a.options.max_seqlen_k = -3; }},
      {Kind::dense, kForward, "split_size", "2^48",
       [](Attention& a) {
         a.options.split_size = 1;
         a.k.shape[1] = a.v.shape[1] = std::int64_t{1} << 43;
         a.k.stride[1] = a.v.stride[1] = 0;
         a.bias = {};
       }},
      // What no backend does.
      {Kind::paged, kBackward, "block_table", "backward over a paged cache", [](Attention&) {},
       ErrorCode::unsupported},
  };
  return table;
}

/// What only a launch sees: pointers and the contents of lengths.
const std::vector<Bad>& launch_table() {
  static const std::vector<Bad> table = {
      {Kind::dense, kForward, "q", "data is null", [](Attention& a) { a.q.data = nullptr; }},
      {Kind::dense, kForward, "out", "data is null", [](Attention& a) { a.out.data = nullptr; }},
      {Kind::dense, kForward, "lse", "data is null", [](Attention& a) { a.lse.data = nullptr; }},
      {Kind::dense, kForward, "bias", "data is null", [](Attention& a) { a.bias.data = nullptr; }},
      {Kind::dense, kBackward, "dout", "data is null", [](Attention& a) { a.dout.data = nullptr; }},
      {Kind::dense, kBackward, "dv", "data is null", [](Attention& a) { a.dv.data = nullptr; }},
      {Kind::dense, kBackward, "dsinks", "data is null",
       [](Attention& a) { a.dsinks.data = nullptr; }},
      {Kind::packed, kForward, "cu_seqlens_q", "data is null",
       [](Attention& a) { a.cu_seqlens_q.data = nullptr; }},
      {Kind::dense, kForward, "q", "not aligned to 4 bytes",
       [](Attention& a) { a.q.data = static_cast<std::byte*>(a.q.data) + 1; }},
      {Kind::dense, kForward, "out", "not aligned to 4 bytes",
       [](Attention& a) { a.out.data = static_cast<std::byte*>(a.out.data) + 2; }},
      {Kind::paged, kForward, "block_table", "not aligned to 4 bytes",
       [](Attention& a) { a.block_table.data = static_cast<std::byte*>(a.block_table.data) + 3; }},
      // Shared memory.
      {Kind::dense, kForward, "out", "shares memory with q",
       [](Attention& a) { a.out.data = a.q.data; }},
      {Kind::dense, kForward, "out", "shares memory with v",
       [](Attention& a) { a.out.data = static_cast<float*>(a.v.data) + 1; }},
      {Kind::dense, kForward, "out", "shares memory with lse",
       [](Attention& a) { a.lse.data = static_cast<float*>(a.out.data) + 200; }},
      {Kind::dense, kForward, "lse", "shares memory with sinks",
       [](Attention& a) { a.lse.data = a.sinks.data; }},
      {Kind::dense, kBackward, "dq", "shares memory with q",
       [](Attention& a) { a.dq.data = a.q.data; }},
      {Kind::dense, kBackward, "dv", "shares memory with dout",
       [](Attention& a) { a.dv.data = a.dout.data; }},
      {Kind::dense, kBackward, "dq", "shares memory with dk",
       [](Attention& a) { a.dk.data = static_cast<float*>(a.dq.data) + 8; }},
      {Kind::dense, kBackward, "dbias", "shares memory with bias",
       [](Attention& a) { a.dbias.data = a.bias.data; }},
      {Kind::packed, kForward, "lse", "shares memory with cu_seqlens_q",
       [](Attention& a) { a.lse.data = a.cu_seqlens_q.data; }},
      // Contents of lengths.
      {Kind::packed, kForward, "cu_seqlens_q", "cu_seqlens_q[0] is -1",
       [](Attention& a) { integers(a.cu_seqlens_q)[0] = -1; }},
      {Kind::packed, kForward, "cu_seqlens_q", "cu_seqlens_q[2] is 3",
       [](Attention& a) { integers(a.cu_seqlens_q)[2] = 3; }},
      {Kind::packed, kForward, "cu_seqlens_k", "has 10 rows",
       [](Attention& a) { integers(a.cu_seqlens_k)[2] = 11; }},
      {Kind::packed, kBackward, "cu_seqlens_k", "cu_seqlens_k[1] is -7",
       [](Attention& a) { integers(a.cu_seqlens_k)[1] = -7; }},
      {Kind::packed, kForward, "max_seqlen_q", "is 4, but sequence 1",
       [](Attention& a) { a.options.max_seqlen_q = 4; }},
      {Kind::packed, kForward, "max_seqlen_k", "is 6, but sequence 0",
       [](Attention& a) { a.options.max_seqlen_k = 6; }},
      {Kind::packed, kForward, "seqused_q", "seqused_q[0] is 5, expected 0 to 4",
       [](Attention& a) { integers(a.seqused_q)[0] = 5; }},
      {Kind::packed, kForward, "seqused_k", "seqused_k[1] is -1",
       [](Attention& a) { integers(a.seqused_k)[1] = -1; }},
      {Kind::packed, kForward, "bias", "query axis has 2 entries",
       [](Attention& a) { a.bias.shape[2] = 2; }},
      {Kind::packed, kForward, "bias", "key axis has 3 entries",
       [](Attention& a) { a.bias.shape[3] = 3; }},
      {Kind::paged, kForward, "seqused_k", "seqused_k[1] is 9, expected 0 to 8",
       [](Attention& a) { integers(a.seqused_k)[1] = 9; }},
      {Kind::paged, kForward, "block_table", "is 5, but the cache has 5 pages",
       [](Attention& a) { integers(a.block_table)[0] = 5; }},
      {Kind::paged, kForward, "block_table", "block_table[1, 1] is -1",
       [](Attention& a) { integers(a.block_table)[3] = -1; }},
  };
  return table;
}

std::string name_of_row(const ::testing::TestParamInfo<Bad>& info) {
  return std::to_string(info.index) + "_" + info.param.argument;
}

void expect_refused(const std::function<void()>& call, const Bad& bad) {
  scene::expect_error(call, bad.code, bad.argument, bad.says);
}

class BadPlan : public ::testing::TestWithParam<Bad> {};

/// Planning and launching refuse it alike; a launch does so though its plan is good.
TEST_P(BadPlan, IsRefusedAndNothingIsWritten) {
  const Bad& bad = GetParam();
  Scene scene(bad.kind, bad.pass);
  if (bad.code == ErrorCode::unsupported) {
    expect_refused([&] { (void)onchip::plan(scene.attention, bad.pass); }, bad);
    return;
  }
  const onchip::Plan good = onchip::plan(scene.attention, bad.pass);
  bad.change(scene.attention);
  expect_refused([&] { (void)onchip::plan(scene.attention, bad.pass); }, bad);
  expect_refused([&] { scene.launch(good, bad.pass); }, bad);
  EXPECT_TRUE(scene.untouched());
}

INSTANTIATE_TEST_SUITE_P(Table, BadPlan, ::testing::ValuesIn(planning_table()), name_of_row);

class BadLaunch : public ::testing::TestWithParam<Bad> {};

TEST_P(BadLaunch, IsRefusedAndNothingIsWritten) {
  const Bad& bad = GetParam();
  Scene scene(bad.kind, bad.pass);
  bad.change(scene.attention);
  scene.remember();
  const onchip::Plan plan = onchip::plan(scene.attention, bad.pass);
  expect_refused([&] { scene.launch(plan, bad.pass); }, bad);
  EXPECT_TRUE(scene.untouched());
}

INSTANTIATE_TEST_SUITE_P(Table, BadLaunch, ::testing::ValuesIn(launch_table()), name_of_row);

/// The table's good problems are good: each bad row differs from one in what it names only.
TEST(Validate, GoodProblemsRun) {
  for (const Kind kind : {Kind::dense, Kind::packed, Kind::paged}) {
    for (const Pass pass : {kForward, kBackward}) {
      if (kind == Kind::paged && pass == kBackward) continue;
      Scene scene(kind, pass);
      scene.launch(onchip::plan(scene.attention, pass), pass);
      EXPECT_FALSE(scene.untouched());
    }
  }
}

}  // namespace
