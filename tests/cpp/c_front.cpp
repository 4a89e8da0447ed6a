// SPDX-License-Identifier: Apache-2.0
#include "c_front.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "fixture.hpp"
#include "onchip/onchip.h"

namespace c_front {
namespace {

onchip_tensor c_tensor(const onchip::TensorView& view) {
  onchip_tensor tensor{};
  tensor.data = view.data;
  tensor.dtype = static_cast<onchip_dtype>(view.dtype);
  tensor.device = {static_cast<onchip_device_type>(view.device.type), view.device.index};
  tensor.ndim = view.ndim;
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.stride.begin(), view.stride.end(), tensor.stride);
  return tensor;
}

onchip_attention c_attention(const onchip::Attention& a) {
  onchip_attention c;
  EXPECT_EQ(onchip_attention_init(&c, sizeof c), ONCHIP_SUCCESS);
  const onchip::Options& o = a.options;
  c.has_scale = o.scale.has_value() ? 1 : 0;
  c.scale = o.scale.value_or(0);
  c.softcap = o.softcap;
  c.dropout_p = o.dropout_p;
  c.seed = o.seed;
  c.offset = o.offset;
  c.window_left = o.window_left;
  c.window_right = o.window_right;
  c.split_size = o.split_size;
  c.max_seqlen_q = o.max_seqlen_q;
  c.max_seqlen_k = o.max_seqlen_k;
  c.num_splits = o.num_splits;
  c.causal = o.causal ? 1 : 0;
  c.deterministic = o.deterministic ? 1 : 0;
  c.softmax = static_cast<onchip_softmax>(o.softmax);
  const auto set = [](onchip_tensor& to, const onchip::TensorView& from) { to = c_tensor(from); };
  set(c.q, a.q);
  set(c.k, a.k);
  set(c.v, a.v);
  set(c.bias, a.bias);
  set(c.alibi_slopes, a.alibi_slopes);
  set(c.sinks, a.sinks);
  set(c.cu_seqlens_q, a.cu_seqlens_q);
  set(c.cu_seqlens_k, a.cu_seqlens_k);
  set(c.seqused_q, a.seqused_q);
  set(c.seqused_k, a.seqused_k);
  set(c.block_table, a.block_table);
  set(c.out, a.out);
  set(c.lse, a.lse);
  set(c.dout, a.dout);
  set(c.dlse, a.dlse);
  set(c.dq, a.dq);
  set(c.dk, a.dk);
  set(c.dv, a.dv);
  set(c.dbias, a.dbias);
  set(c.dsinks, a.dsinks);
  return c;
}

}  // namespace

void call(const onchip::Attention& attention, onchip::Pass pass) {
  const onchip_attention args = c_attention(attention);
  onchip_plan* made = nullptr;
  ASSERT_EQ(onchip_plan_create(&args, static_cast<onchip_pass>(pass), &made), ONCHIP_SUCCESS)
      << onchip_last_error();
  const std::unique_ptr<onchip_plan, void (*)(onchip_plan*)> plan(made, onchip_plan_destroy);
  const fixture::Workspace workspace(onchip_plan_workspace_bytes(plan.get()));
  const auto run = pass == onchip::Pass::forward ? onchip_forward : onchip_backward;
  ASSERT_EQ(run(plan.get(), &args, workspace.data(), workspace.size(), nullptr), ONCHIP_SUCCESS)
      << onchip_last_error();
  EXPECT_TRUE(workspace.guards_intact()) << "written beside the workspace";
}

void dropout_mask(const onchip::TensorView& mask, double p, std::uint64_t seed,
                  std::uint64_t offset) {
  const onchip_tensor tensor = c_tensor(mask);
  ASSERT_EQ(onchip_dropout_mask(&tensor, p, seed, offset, nullptr), ONCHIP_SUCCESS)
      << onchip_last_error();
}

}  // namespace c_front
