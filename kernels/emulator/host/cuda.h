// What kernels need of CUDA, on a host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static
#define __CUDA_ARCH__ 900

#define KERNEL(name, blocks, ...)                                            \
    void name(__VA_ARGS__);                                                  \
    static const bool registered_##name = emulator::add(#name, name);        \
    void name(__VA_ARGS__)

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }

namespace emulator {
inline float f16_to_f32(unsigned short bits) { return (float)bits_as<_Float16>(bits); }
inline unsigned short f32_to_f16(float value) {
    return bits_as<unsigned short>((_Float16)value);
}

template <class T>
void check_alignment(const T* pointer) {
    if ((uintptr_t)pointer % alignof(T)) fail("a vector is not aligned");
}

template <class T>
T exchange(T value, unsigned lane) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = shuffle(bits, lane);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
}  // namespace emulator

template <class T>
T __ldcs(const T* from) {
    emulator::check_alignment(from);
    return *from;
}
template <class T>
void __stcs(T* to, T value) {
    emulator::check_alignment(to);
    *to = value;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    return emulator::exchange(value, threadIdx.x % 32 ^ mask);
}

inline void __threadfence() {}
inline void __syncthreads() { emulator::barrier(false); }
inline bool __syncthreads_or(bool value) { return emulator::barrier(value); }

template <class T>
T atomicAdd(T* to, T value) {
    T old = *to;
    *to = old + value;
    return old;
}
template <class T>
T atomicMin(T* to, T value) {
    T old = *to;
    if (value < old) *to = value;
    return old;
}
