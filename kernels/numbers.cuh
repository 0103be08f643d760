// Types of elements and the conversions between them.
#pragma once

#include "kernel.cuh"

struct F32 {
    typedef float Bits;
    static __device__ __forceinline__ float decode(float value) { return value; }
    static __device__ __forceinline__ float encode(float value) { return value; }
};

struct F16 {
    typedef u16 Bits;
#ifdef TCH_AMP_EMULATOR
    static float decode(u16 bits) { return emulator::f16_to_f32(bits); }
    static u16 encode(float value) { return emulator::f32_to_f16(value); }
#else
    static __device__ __forceinline__ float decode(u16 bits) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
    static __device__ __forceinline__ u16 encode(float value) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return bits;
    }
#endif
};

struct Bf16 {
    typedef u16 Bits;
    static constexpr u16 NOT_A_NUMBER = 0x7FC0;

    static __device__ __forceinline__ float decode(u16 bits) {
        return __uint_as_float((u32)bits << 16);
    }
    static __device__ __forceinline__ u16 encode(float value) {
        u32 bits = __float_as_uint(value);
        return value != value ? NOT_A_NUMBER : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    }
    // Adds 16 random bits below those that stay.
    static __device__ __forceinline__ u16 encode(float value, u32 random) {
        return value != value ? NOT_A_NUMBER : (__float_as_uint(value) + random) >> 16;
    }
};

// The exponent of infinities and NaNs is all ones.
__device__ __forceinline__ u32 not_finite(float value) {
    u32 magnitude = __float_as_uint(value) & 0x7FFFFFFF;
    return magnitude < 0x7F800000 ? 0 : magnitude == 0x7F800000 ? FOUND_INF : FOUND_NAN;
}

// By squaring, with the same bits everywhere.
__device__ __forceinline__ double power(double base, u64 exponent) {
    double result = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}
