/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI: exact attention, forward and backward, on memory that the caller owns.
 *
 *   onchip_attention args;
 *   onchip_attention_init(&args, sizeof args);         the defaults
 *   args.q = ...; args.k = ...; args.v = ...; args.out = ...;
 *   onchip_plan* plan = NULL;
 *   if (onchip_plan_create(&args, ONCHIP_FORWARD, &plan) != ONCHIP_SUCCESS)
 *     puts(onchip_last_error());
 *   onchip_forward(plan, &args, workspace, workspace_bytes, NULL);
 *   onchip_plan_destroy(plan);
 *
 * Structs that begin with `struct_size` may grow at their end: set it to the sizeof of the caller's
 * header. A smaller struct of an older header means defaults for what it lacks; a larger one of a
 * newer header is refused if it asks for what this library does not know.
 * No function throws, and all but the thread settings may be called from many threads at once. */
#ifndef ONCHIP_ONCHIP_H_
#define ONCHIP_ONCHIP_H_

#include <stddef.h>
#include <stdint.h>

#include "onchip/export.h"

#define ONCHIP_VERSION_MAJOR 0
#define ONCHIP_VERSION_MINOR 1
#define ONCHIP_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---------------------------------------------------------------------------------- */

typedef enum onchip_status {
  ONCHIP_SUCCESS = 0,
  ONCHIP_INVALID_ARGUMENT =
      1,                    /* an argument breaks the contract; nothing was launched or written */
  ONCHIP_UNSUPPORTED = 2,   /* a valid request that this build or device cannot serve */
  ONCHIP_DEVICE_ERROR = 3,  /* the device or its driver reported a failure */
  ONCHIP_OUT_OF_MEMORY = 4, /* host memory for the library's own small state ran out */
  ONCHIP_INTERNAL = 5       /* a fault of the library */
} onchip_status;

/* Why the last failing call of this thread failed: "k: heads_kv 6 does not divide heads_q 32".
 * Empty before the first failure; overwritten by the next one. Never NULL. */
ONCHIP_API const char* onchip_last_error(void);

/* "0.1.0": the version of the library, which may differ from the header's. */
ONCHIP_API const char* onchip_version(void);

/* ---- Tensors --------------------------------------------------------------------------------- */

typedef int32_t onchip_dtype;
enum {
  ONCHIP_NONE = 0,
  ONCHIP_FLOAT64 = 1,
  ONCHIP_FLOAT32 = 2,
  ONCHIP_FLOAT16 = 3,
  ONCHIP_BFLOAT16 = 4,
  ONCHIP_INT32 = 5,
  ONCHIP_UINT8 = 6
};

typedef int32_t onchip_device_type;
enum { ONCHIP_CPU = 0, ONCHIP_CUDA = 1 };

typedef struct onchip_device {
  onchip_device_type type;
  int32_t index;
} onchip_device;

#define ONCHIP_MAX_DIMS 5

/* A strided view of the caller's memory. All zero, ndim 0 above all, means "not given". Strides
 * count elements; those of inputs may be 0, those of any tensor negative. A tensor without elements
 * may have NULL data, and planning looks at no data at all. */
typedef struct onchip_tensor {
  void* data;
  onchip_dtype dtype;
  onchip_device device;
  int32_t ndim;
  int64_t shape[ONCHIP_MAX_DIMS];
  int64_t stride[ONCHIP_MAX_DIMS];
} onchip_tensor;

/* A cudaStream_t, or NULL on the CPU, where a call returns when its work is done. */
typedef void* onchip_stream;

typedef int64_t onchip_softmax;
enum {
  ONCHIP_SOFTMAX_AUTOMATIC = 0, /* a kernel may keep an earlier great score of a row until a later
                                   one is far above it: Hopper's forward kernels do */
  ONCHIP_SOFTMAX_SAFE = 1       /* each row's maximum over the keys so far */
};

/* ---- Problems -------------------------------------------------------------------------------- */

/* Every option and every tensor of one attention problem. For query i and key j, c = Sk - Sq:
 *   s = scale * q_i.k_j;  s = softcap * tanh(s / softcap) if softcap > 0;
 *   s += bias[b,h,i,j];  s -= alibi_slopes[h] * |i + c - j|;
 *   key j is visible iff -window_left <= j - (i + c) <= window_right;
 *   p = softmax over visible j, dropout, out = sum p v, lse = log sum exp(s).
 * q, k, v, out, dout and the gradients share one dtype: float32, float16, bfloat16 or float64. The
 * statistics (lse, dlse, alibi_slopes, sinks, dsinks) are float32, or float64 where q is float64.
 * The last stride of q, k, v, out, dout, dq, dk and dv is 1. What is written shares memory with no
 * other tensor and not with itself. */
typedef struct onchip_attention {
  size_t struct_size;
  double scale;         /* read where has_scale is not 0; the default is 1/sqrt(D); within +-1e18 */
  double softcap;       /* 0 = off, else 1e-18 to 1e18 */
  double dropout_p;     /* in [0, 1); dropped where a 16-bit Philox lane < round(65536 p) */
  uint64_t seed;        /* of dropout; may differ between plan and launch */
  uint64_t offset;      /* of dropout; may differ between plan and launch */
  int64_t window_left;  /* keys to the left of the diagonal; -1 = unlimited, the default */
  int64_t window_right; /* keys to the right of the diagonal; -1 = unlimited, the default */
  int64_t split_size;   /* forward: keys of one split; overrides num_splits when > 0 */
  int64_t max_seqlen_q; /* packed: hint for planning; 0 = unknown */
  int64_t max_seqlen_k; /* packed: hint for planning; 0 = unknown */
  int32_t num_splits;   /* forward, split-KV: 1 = none, the default; 0 = the planner chooses */
  int32_t has_scale;    /* 1: use `scale` */
  int32_t causal;       /* 1: as window_right = 0, aligned bottom-right */
  int32_t deterministic; /* 1: backward bitwise repeatable (always so on the CPU) */

  onchip_tensor q;    /* (B, Sq, Hq, D), packed (Tq, Hq, D) */
  onchip_tensor k;    /* (B, Sk, Hkv, D), packed (Tk, Hkv, D), paged (pages, size, Hkv, D) */
  onchip_tensor v;    /* as k with Dv for D */
  onchip_tensor bias; /* (B|1, Hq|1, Sq|1, Sk|1), q's dtype or that of the statistics */
  onchip_tensor alibi_slopes;  /* (Hq) or (B, Hq) */
  onchip_tensor sinks;         /* (Hq): a logit in the denominator only */
  onchip_tensor cu_seqlens_q;  /* int32 (B + 1): first token of each sequence; means "packed" */
  onchip_tensor cu_seqlens_k;  /* int32 (B + 1) */
  onchip_tensor seqused_q;     /* int32 (B): tokens of each sequence that count */
  onchip_tensor seqused_k;     /* int32 (B) */
  onchip_tensor block_table;   /* int32 (B, max_pages): means "paged", forward only */
  onchip_tensor out;           /* (B, Sq, Hq, Dv) or (Tq, Hq, Dv); written by forward, then read */
  onchip_tensor lse;           /* (B, Hq, Sq) or (Hq, Tq), natural log; optional in forward */
  onchip_tensor dout;          /* backward: as out */
  onchip_tensor dlse;          /* backward: as lse; optional */
  onchip_tensor dq, dk, dv;    /* backward: as q, k, v; written */
  onchip_tensor dbias, dsinks; /* backward: as bias, sinks; optional, written */
  onchip_softmax softmax;      /* forward: ONCHIP_SOFTMAX_SAFE forces the plain online softmax */
} onchip_attention;

/* Sets the defaults. `struct_size` is sizeof(onchip_attention). */
ONCHIP_API onchip_status onchip_attention_init(onchip_attention* args, size_t struct_size);

/* ---- Devices --------------------------------------------------------------------------------- */

/* The facts of a device that planning needs. */
typedef struct onchip_device_info {
  size_t struct_size;
  char name[64];
  onchip_device_type type;
  int32_t index;              /* -1: a device known by name, none of this machine */
  int32_t compute_capability; /* 90 for sm_90; 0 for a CPU */
  int32_t units;              /* streaming multiprocessors, or threads of a CPU */
  int64_t on_chip_bytes;      /* shared memory of one block, or L2 of one core */
  int64_t l2_bytes;           /* L2 of a GPU, last-level cache of a CPU */
  int64_t memory_bytes;
  double bandwidth;   /* device memory, bytes per second */
  double flops_16bit; /* FLOP per second, float16 and bfloat16 */
  double flops_float32;
  double flops_float64;
  int64_t family; /* newest family of GPU kernels to plan with, 80 or 90; 0: the newest there is */
} onchip_device_info;

/* Fills `info`, whose struct_size is set, with the facts of "cpu" or "cuda:<index>" of this
 * machine, or of a device known by name, in any case. A plan for a known device runs on a device
 * that has its compute capability, and its number of multiprocessors where the plan depends on
 * that. */
ONCHIP_API onchip_status onchip_get_device_info(const char* name, onchip_device_info* info);

/* Names of the devices that onchip_get_device_info knows, by index; NULL past the last. */
ONCHIP_API const char* onchip_known_device(int32_t index);

/* ---- Plans ----------------------------------------------------------------------------------- */

typedef int32_t onchip_pass;
enum { ONCHIP_FORWARD = 0, ONCHIP_BACKWARD = 1 };

/* Immutable; many launches, on any thread, may share one. */
typedef struct onchip_plan onchip_plan;

/* Plans for the device that q lies on. *plan is set on success only. */
ONCHIP_API onchip_status onchip_plan_create(const onchip_attention* args, onchip_pass pass,
                                            onchip_plan** plan);

/* The same for any device, real or named; needs no such device and makes no device call. */
ONCHIP_API onchip_status onchip_plan_create_for_device(const onchip_attention* args,
                                                       onchip_pass pass,
                                                       const onchip_device_info* device,
                                                       onchip_plan** plan);

/* NULL is fine. */
ONCHIP_API void onchip_plan_destroy(onchip_plan* plan);

/* Bytes of workspace that a launch needs; 0 for NULL. */
ONCHIP_API size_t onchip_plan_workspace_bytes(const onchip_plan* plan);

/* Predicted cost. Bytes are those read from and written to device memory. */
typedef struct onchip_cost {
  double flops; /* of the matrix products, visible scores only */
  double bytes_read;
  double bytes_written;
  double intensity;      /* FLOP per byte */
  double seconds;        /* on the roofline */
  double peak_bytes;     /* memory beyond the inputs: outputs, lse, workspace */
  int64_t compute_bound; /* 1: the matrix products bound it; 0: memory does */
} onchip_cost;

typedef struct onchip_plan_info {
  size_t struct_size;
  const char* backend; /* "cpu", "sm80" or "sm90"; lives as long as the plan, as the next two */
  const char* kernel;  /* name of the instance, e.g. "cpu_fwd_float32" */
  const char* device;  /* name of the device */
  onchip_pass pass;
  int32_t stages;        /* buffers of K in a block's pipeline */
  int32_t warps;         /* warps of a block; 0 on a CPU */
  int32_t threads;       /* workers on a CPU; 0 on a GPU */
  int64_t tile_q;        /* Br: query rows of a tile */
  int64_t tile_k;        /* Bc: keys of a tile */
  int64_t on_chip_bytes; /* fast memory of one block */
  int64_t grid;          /* blocks launched (tasks on a CPU) */
  int64_t num_splits;    /* split-KV parts of a query tile */
  int64_t split_size;    /* keys of one part */
  size_t workspace_bytes;
  onchip_cost cost;     /* of this plan */
  onchip_cost standard; /* of the standard algorithm, which materialises S and P */
} onchip_plan_info;

/* Fills `info`, whose struct_size is set. */
ONCHIP_API onchip_status onchip_plan_get_info(const onchip_plan* plan, onchip_plan_info* info);

/* The plan in words and a picture, and as one JSON object. The text lives as long as the plan. */
ONCHIP_API onchip_status onchip_plan_explain(const onchip_plan* plan, const char** text);
ONCHIP_API onchip_status onchip_plan_json(const onchip_plan* plan, const char** text);

/* ---- Runs ------------------------------------------------------------------------------------ */

/* Computes out and, where given, lse. Shapes, strides and options must be those planned; pointers,
 * seed and offset are free. `workspace` has at least onchip_plan_workspace_bytes() bytes on q's
 * device, aligned to 256. Allocates nothing and does not synchronise. */
ONCHIP_API onchip_status onchip_forward(const onchip_plan* plan, const onchip_attention* args,
                                        void* workspace, size_t workspace_bytes,
                                        onchip_stream stream);

/* Computes dq, dk, dv and, where given, dbias and dsinks, from dout and forward's out and lse. */
ONCHIP_API onchip_status onchip_backward(const onchip_plan* plan, const onchip_attention* args,
                                         void* workspace, size_t workspace_bytes,
                                         onchip_stream stream);

#define ONCHIP_MAX_MERGE_PARTS 256

/* Joins `count` results over disjoint sets of keys: out = sum_n w_n outs[n], w_n =
 * exp(lses[n] - lse), lse = log sum_n exp(lses[n]). A row that no part sees: out 0, lse -inf. */
ONCHIP_API onchip_status onchip_merge_states(const onchip_tensor* outs, const onchip_tensor* lses,
                                             size_t count, const onchip_tensor* out,
                                             const onchip_tensor* lse, onchip_stream stream);

/* Writes the dropout mask, uint8 (B, Hq, Sq, Sk), 1 = kept. Philox4x32-10 with key = seed, counter
 * = (j div 8, i, b*Hq + h, offset); lane j mod 8 of 16 bits; kept iff >= round(65536 p). */
ONCHIP_API onchip_status onchip_dropout_mask(const onchip_tensor* mask, double p, uint64_t seed,
                                             uint64_t offset, onchip_stream stream);

/* ---- Threads of the CPU backend -------------------------------------------------------------- */

/* A server's own thread pool. `run` calls task(state, index) for every index in [0, count), on any
 * threads, in any order, one after another if need be, and returns when all have returned. */
typedef struct onchip_executor {
  size_t struct_size;
  void (*run)(void* self, int32_t count, void (*task)(void* state, int32_t index), void* state);
  void* self;
  int64_t concurrency; /* how many tasks `run` may run at once; sizes the workspace */
} onchip_executor;

/* Threads that plans made from now on may use, the caller's included. 0: the default. */
ONCHIP_API onchip_status onchip_set_num_threads(int32_t count);
ONCHIP_API int32_t onchip_num_threads(void);

/* Runs all CPU work through `executor` (copied); NULL restores the built-in pool. Must not be
 * called while an attention call is running. */
ONCHIP_API onchip_status onchip_set_executor(const onchip_executor* executor);

/* The instruction set that the CPU backend chose at run time, e.g. "AVX2". */
ONCHIP_API const char* onchip_cpu_isa(void);

#ifdef __cplusplus
}
#endif

#endif /* ONCHIP_ONCHIP_H_ */
