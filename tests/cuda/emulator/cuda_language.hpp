// SPDX-License-Identifier: Apache-2.0
// CUDA C++ as far as the kernels use it, for a C++ compiler; included before everything else.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "block.hpp"

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// Blocks run one after another on a thread of the CPU: what is its own is its block's.
#define __shared__ thread_local
#define __CUDA_ARCH__ ONCHIP_EMULATED_ARCH

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

inline void __syncthreads() { emulator::sync_block(); }
inline void __syncwarp() {
  emulator::together<int>(0, [](const int* const*, int* const*) {});
}

namespace emulator {

template <class T>
struct Shuffle {
  T value;
  unsigned from;
};

template <class T>
T shuffle(T value, unsigned from) {
  return together<T>(Shuffle<T>{value, from}, [](const Shuffle<T>* const* in, T* const* out) {
    for (int lane = 0; lane < 32; ++lane) *out[lane] = in[in[lane]->from % 32]->value;
  });
}

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned /*mask*/, T value, int from) {
  return emulator::shuffle(value, static_cast<unsigned>(from));
}
template <class T>
T __shfl_xor_sync(unsigned /*mask*/, T value, unsigned flip) {
  return emulator::shuffle(value, threadIdx.x % 32 ^ flip);
}
template <class T>
T __shfl_up_sync(unsigned /*mask*/, T value, unsigned step) {
  const unsigned lane = threadIdx.x % 32;
  return emulator::shuffle(value, lane < step ? lane : lane - step);
}
inline int __any_sync(unsigned /*mask*/, int value) {
  return emulator::together<int>(value, [](const int* const* in, int* const* out) {
    int any = 0;
    for (int lane = 0; lane < 32; ++lane) any |= *in[lane];
    for (int lane = 0; lane < 32; ++lane) *out[lane] = any;
  });
}

inline int __all_sync(unsigned mask, int value) { return !__any_sync(mask, !value); }

inline std::uint32_t __umulhi(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(std::uint64_t{a} * b >> 32);
}
inline float __fdividef(float a, float b) { return a / b; }
inline float log2_of_device(float x) { return std::log2(x); }
#define __log2f log2_of_device  // the C library has a function of that name
template <class T>
T atomicAdd(T* to, T value) {
  const T old = *to;
  *to += value;
  return old;
}
template <class T>
T atomicOr(T* to, T value) {
  const T old = *to;
  *to |= value;
  return old;
}

inline int __vimax3_s32(int a, int b, int c) { return std::max({a, b, c}); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
  return __floats2half2_rn(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  const float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b), z = __bfloat1622float2(c);
  return __floats2bfloat162_rn(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}

template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const std::type_identity_t<Parameters>&... arguments) {
  emulator::run(config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes,
                [&] { kernel(arguments...); });
  return cudaSuccess;
}
