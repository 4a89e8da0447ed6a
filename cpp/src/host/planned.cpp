// SPDX-License-Identifier: Apache-2.0
// What a launch has changed since its plan was made, in words.
#include <cstdio>
#include <string>

#include "host/check.hpp"
#include "host/problem.hpp"

namespace onchip::host {
namespace {

template <class T>
struct Field {
  const char* argument;
  const char* what;
  T Problem::* member;
};

constexpr Field<std::int64_t> kExtents[] = {
    {"q", "batch", &Problem::batch},
    {"q", "heads_q", &Problem::heads_q},
    {"q", "D", &Problem::dim},
    {"q", "total_q", &Problem::total_q},
    {"q", "Sq or max_seqlen_q", &Problem::seqlen_q},
    {"max_seqlen_q", "the hint", &Problem::hint_q},
    {"k", "heads_kv", &Problem::heads_kv},
    {"k", "page_size", &Problem::page_size},
    {"k", "the number of pages", &Problem::num_pages},
    {"block_table", "max_pages", &Problem::max_pages},
    {"k", "total_k", &Problem::total_k},
    {"k", "Sk or max_seqlen_k", &Problem::seqlen_k},
    {"v", "Dv", &Problem::dim_v},
    {"window_left", "the window", &Problem::window_left},
    {"window_right", "the window (0 if causal)", &Problem::window_right},
    {"split_size", "the size", &Problem::split_size},
};

constexpr Field<double> kNumbers[] = {
    {"scale", "the factor", &Problem::scale},
    {"softcap", "the cap", &Problem::softcap},
    {"dropout_p", "the probability", &Problem::dropout_p},
};

constexpr Field<bool> kPresence[] = {
    {"cu_seqlens_q", "", &Problem::packed},
    {"block_table", "", &Problem::paged},
    {"cu_seqlens_k", "", &Problem::has_cu_seqlens_k},
    {"seqused_q", "", &Problem::has_seqused_q},
    {"seqused_k", "", &Problem::has_seqused_k},
    {"alibi_slopes", "", &Problem::has_alibi},
    {"sinks", "", &Problem::has_sinks},
    {"lse", "", &Problem::has_lse},
    {"dlse", "", &Problem::has_dlse},
    {"dbias", "", &Problem::has_dbias},
    {"dsinks", "", &Problem::has_dsinks},
};

constexpr Field<Strides> kStrides[] = {
    {"q", "", &Problem::q},       {"k", "", &Problem::k},     {"v", "", &Problem::v},
    {"out", "", &Problem::out},   {"lse", "", &Problem::lse}, {"dout", "", &Problem::dout},
    {"dlse", "", &Problem::dlse}, {"dq", "", &Problem::dq},   {"dk", "", &Problem::dk},
    {"dv", "", &Problem::dv},
};

constexpr Field<std::int64_t> kStride[] = {
    {"alibi_slopes", "", &Problem::alibi_batch},
    {"alibi_slopes", "", &Problem::alibi_head},
    {"sinks", "", &Problem::sinks},
    {"dsinks", "", &Problem::dsinks},
    {"cu_seqlens_q", "", &Problem::cu_seqlens_q},
    {"cu_seqlens_k", "", &Problem::cu_seqlens_k},
    {"seqused_q", "", &Problem::seqused_q},
    {"seqused_k", "", &Problem::seqused_k},
    {"block_table", "", &Problem::block_table_batch},
    {"block_table", "", &Problem::block_table_page},
};

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(DType value) { return name_of(value); }

template <class T>
void compare(const char* argument, const std::string& what, const T& planned, const T& now) {
  if (planned == now) return;
  reject(argument, what + " is " + text_of(now) + ", but " + text_of(planned) +
                       " was planned; make a new plan");
}

void compare_presence(const char* argument, bool planned, bool now) {
  if (planned == now) return;
  reject(argument, now ? "given, but the plan was made without it; make a new plan"
                       : "not given, but the plan was made with it; make a new plan");
}

template <class T>
void compare_strides(const char* argument, const T& planned, const T& now) {
  if (!(planned == now)) reject(argument, "its strides are not those planned; make a new plan");
}

}  // namespace

void check_planned(const Problem& planned, const Problem& now) {
  if (planned == now) return;
  if (planned.pass != now.pass) {
    reject("plan", now.pass == Pass::forward ? "was made for backward, but forward was called"
                                             : "was made for forward, but backward was called");
  }
  if (!(planned.device == now.device)) reject("q", "lies on another device than planned");
  compare("q", "dtype", planned.dtype, now.dtype);
  for (const auto& f : kPresence) {
    compare_presence(f.argument, planned.*f.member, now.*f.member);
  }
  compare_presence("bias", planned.bias_dtype != DType::none, now.bias_dtype != DType::none);
  compare("bias", "dtype", planned.bias_dtype, now.bias_dtype);
  for (const auto& f : kExtents) compare(f.argument, f.what, planned.*f.member, now.*f.member);
  for (const auto& f : kNumbers) compare(f.argument, f.what, planned.*f.member, now.*f.member);
  compare<std::int64_t>("num_splits", "the number", planned.num_splits, now.num_splits);
  compare<std::int64_t>("deterministic", "the option", planned.deterministic, now.deterministic);
  compare("softmax", "the option", static_cast<std::int64_t>(planned.softmax),
          static_cast<std::int64_t>(now.softmax));
  if (!(planned.bias_shape == now.bias_shape)) {
    reject("bias", "its shape is not the one planned; make a new plan");
  }
  compare_strides("bias", planned.bias, now.bias);
  compare_strides("dbias", planned.dbias, now.dbias);
  for (const auto& f : kStrides) compare_strides(f.argument, planned.*f.member, now.*f.member);
  for (const auto& f : kStride) compare_strides(f.argument, planned.*f.member, now.*f.member);
  reject("plan", "was made for another problem; make a new plan");
}

}  // namespace onchip::host
