/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention of one head over four tokens, forward and backward, through the C ABI.
 *
 *   cc attention.c $(pkg-config --cflags --libs onchip) -o attention */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onchip/onchip.h"

enum { kTokens = 4, kDim = 2 };

/* A dense float32 tensor. */
static onchip_tensor tensor(float* data, int32_t ndim, const int64_t* shape) {
  onchip_tensor t;
  int64_t stride = 1;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = ONCHIP_FLOAT32;
  t.ndim = ndim;
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    t.shape[axis] = shape[axis];
    t.stride[axis] = stride;
    stride *= shape[axis];
  }
  return t;
}

/* Plans and runs one pass in workspace of its own. A server would keep both. */
static onchip_status run(const onchip_attention* args, onchip_pass pass) {
  onchip_plan* plan = NULL;
  onchip_status status = onchip_plan_create(args, pass, &plan);
  if (status != ONCHIP_SUCCESS) return status;

  size_t bytes = onchip_plan_workspace_bytes(plan);
  void* workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
  if (workspace == NULL) {
    status = ONCHIP_OUT_OF_MEMORY;
  } else if (pass == ONCHIP_FORWARD) {
    status = onchip_forward(plan, args, workspace, bytes, NULL);
  } else {
    status = onchip_backward(plan, args, workspace, bytes, NULL);
  }
  free(workspace);
  onchip_plan_destroy(plan);
  return status;
}

static void print_rows(const char* name, const float* rows) {
  printf("%s\n", name);
  for (int i = 0; i < kTokens; ++i) {
    printf("  %9.6f %9.6f\n", (double)rows[kDim * i], (double)rows[kDim * i + 1]);
  }
}

int main(void) {
  float q[kTokens * kDim] = {1, 0, 0, 1, 1, 1, 1, -1};
  float k[kTokens * kDim] = {1, 0, 0, 2, 1, 1, -1, 3};
  float v[kTokens * kDim] = {1, 0, 0, 1, 2, 1, 1, 3};
  float dout[kTokens * kDim] = {1, 1, 1, 1, 1, 1, 1, 1};
  float out[kTokens * kDim], dq[kTokens * kDim], dk[kTokens * kDim], dv[kTokens * kDim];
  float lse[kTokens];

  const int64_t rows[4] = {1, kTokens, 1, kDim}; /* batch, tokens, heads, dim */
  const int64_t statistics[3] = {1, 1, kTokens}; /* batch, heads, tokens */

  onchip_attention args;
  onchip_attention_init(&args, sizeof args);
  args.causal = 1;
  args.q = tensor(q, 4, rows);
  args.k = tensor(k, 4, rows);
  args.v = tensor(v, 4, rows);
  args.out = tensor(out, 4, rows);
  args.lse = tensor(lse, 3, statistics);
  args.dout = tensor(dout, 4, rows);
  args.dq = tensor(dq, 4, rows);
  args.dk = tensor(dk, 4, rows);
  args.dv = tensor(dv, 4, rows);

  if (run(&args, ONCHIP_FORWARD) != ONCHIP_SUCCESS ||
      run(&args, ONCHIP_BACKWARD) != ONCHIP_SUCCESS) {
    fprintf(stderr, "%s\n", onchip_last_error());
    return EXIT_FAILURE;
  }
  printf("onchip %s on %s\n", onchip_version(), onchip_cpu_isa());
  print_rows("out", out);
  print_rows("dq", dq);
  print_rows("dk", dk);
  print_rows("dv", dv);
  return EXIT_SUCCESS;
}
