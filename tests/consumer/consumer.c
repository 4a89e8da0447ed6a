/* SPDX-License-Identifier: Apache-2.0 */
/* Two keys with scores 0 and ln 3 weigh 1/4 and 3/4. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onchip/onchip.h"

static onchip_tensor dense(void* data, int32_t ndim, int64_t rows) {
  onchip_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = ONCHIP_FLOAT32;
  t.ndim = ndim;
  for (int32_t axis = 0; axis < ndim; ++axis) t.shape[axis] = t.stride[axis] = 1;
  t.shape[1] = rows;
  t.stride[0] = rows;
  return t;
}

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, onchip_last_error());
  return 1;
}

int main(void) {
  float q[1] = {1.0F};
  float k[2] = {0.0F, logf(3.0F)};
  float v[2] = {4.0F, 8.0F};
  float out[1] = {0.0F};
  float lse[1] = {0.0F};

  onchip_attention args;
  if (onchip_attention_init(&args, sizeof args) != ONCHIP_SUCCESS) return fail("init");
  args.has_scale = 1;
  args.scale = 1.0;
  args.q = dense(q, 4, 1);
  args.k = dense(k, 4, 2);
  args.v = dense(v, 4, 2);
  args.out = dense(out, 4, 1);
  args.lse = dense(lse, 3, 1);

  onchip_plan* plan = NULL;
  if (onchip_plan_create(&args, ONCHIP_FORWARD, &plan) != ONCHIP_SUCCESS) return fail("plan");
  size_t bytes = onchip_plan_workspace_bytes(plan);
  void* workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
  if (workspace == NULL) return fail("aligned_alloc");
  if (onchip_forward(plan, &args, workspace, bytes, NULL) != ONCHIP_SUCCESS) return fail("forward");
  free(workspace);
  onchip_plan_destroy(plan);

  args.q.shape[3] = 3;
  plan = NULL;
  int refused = onchip_plan_create(&args, ONCHIP_FORWARD, &plan) == ONCHIP_INVALID_ARGUMENT &&
                strlen(onchip_last_error()) > 0;
  onchip_device_info info;
  info.struct_size = sizeof info;
  const onchip_status cuda = onchip_get_device_info("cuda", &info);
  printf("cuda: %s\n", cuda == ONCHIP_UNSUPPORTED ? "not built in" : "built in");

  int right = fabsf(out[0] - 7.0F) < 1e-5F && fabsf(lse[0] - logf(4.0F)) < 1e-5F;
  printf("onchip %s: out %g lse %g, bad shape %s\n", onchip_version(), (double)out[0],
         (double)lse[0], refused ? "refused" : "accepted");
  return right && refused ? 0 : 1;
}
