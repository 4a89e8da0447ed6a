/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a server: a new token of each sequence against a paged cache of keys and values. The
 * plan and the workspace are made once; each step only launches. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onchip/onchip.h"

enum { BATCH = 2, HEADS = 8, HEADS_KV = 2, DIM = 64, PAGES = 8, PAGE_SIZE = 16, MAX_PAGES = 4 };

static float q[BATCH * HEADS * DIM];
static float k_cache[PAGES * PAGE_SIZE * HEADS_KV * DIM];
static float v_cache[PAGES * PAGE_SIZE * HEADS_KV * DIM];
static float out[BATCH * HEADS * DIM];

/* Dense row-major memory. */
static onchip_tensor tensor(void* data, onchip_dtype dtype, int32_t ndim, const int64_t* shape) {
  onchip_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = dtype;
  t.ndim = ndim;
  int64_t stride = 1;
  for (int32_t axis = ndim - 1; axis >= 0; --axis) {
    t.shape[axis] = shape[axis];
    t.stride[axis] = stride;
    stride *= shape[axis];
  }
  return t;
}

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, onchip_last_error());
  return 1;
}

int main(void) {
  for (int i = 0; i < BATCH * HEADS * DIM; ++i) q[i] = sinf(0.1F * (float)i);
  for (int i = 0; i < PAGES * PAGE_SIZE * HEADS_KV * DIM; ++i) {
    k_cache[i] = cosf(0.3F * (float)i);
    v_cache[i] = 1.0F;
  }
  /* Sequence 0 has 20 keys on pages 3 and 1, sequence 1 has 50 on pages 0, 2, 5 and 7. */
  int32_t block_table[BATCH * MAX_PAGES] = {3, 1, 0, 0, 0, 2, 5, 7};
  int32_t lengths[BATCH] = {20, 50};

  onchip_attention args;
  if (onchip_attention_init(&args, sizeof args) != ONCHIP_SUCCESS) return fail("init");
  args.q = tensor(q, ONCHIP_FLOAT32, 4, (int64_t[]){BATCH, 1, HEADS, DIM});
  args.k = tensor(k_cache, ONCHIP_FLOAT32, 4, (int64_t[]){PAGES, PAGE_SIZE, HEADS_KV, DIM});
  args.v = tensor(v_cache, ONCHIP_FLOAT32, 4, (int64_t[]){PAGES, PAGE_SIZE, HEADS_KV, DIM});
  args.block_table = tensor(block_table, ONCHIP_INT32, 2, (int64_t[]){BATCH, MAX_PAGES});
  args.seqused_k = tensor(lengths, ONCHIP_INT32, 1, (int64_t[]){BATCH});
  args.out = tensor(out, ONCHIP_FLOAT32, 4, (int64_t[]){BATCH, 1, HEADS, DIM});
  args.split_size = 32; /* keys side by side, with the same bits whatever the batch */

  onchip_plan* plan = NULL;
  if (onchip_plan_create(&args, ONCHIP_FORWARD, &plan) != ONCHIP_SUCCESS) return fail("plan");
  const size_t bytes = onchip_plan_workspace_bytes(plan);
  void* workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (workspace == NULL) return 1;

  int status = 0;
  for (int step = 0; step < 3 && status == 0; ++step) {
    if (onchip_forward(plan, &args, workspace, bytes, NULL) != ONCHIP_SUCCESS) {
      status = fail("forward");
      break;
    }
    /* All values are 1, so every weighted mean is. */
    printf("keys %d and %d: out[0] %.6f\n", lengths[0], lengths[1], (double)out[0]);
    ++lengths[0];
    ++lengths[1];
  }

  /* What is wrong is said, and nothing is written: page 8 is not there. */
  block_table[0] = PAGES;
  if (onchip_forward(plan, &args, workspace, bytes, NULL) == ONCHIP_INVALID_ARGUMENT) {
    printf("refused: %s\n", onchip_last_error());
  } else {
    status = 1;
  }
  free(workspace);
  onchip_plan_destroy(plan);
  return status;
}
