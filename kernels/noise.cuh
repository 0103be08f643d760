// The random bits of stochastic rounding: Philox4x32-7 (Salmon et al., SC 2011).
#pragma once

#include "kernel.cuh"

// The bits of elements 8 * block to 8 * block + 7, two in a word, the lower half first.
__device__ __forceinline__ void random_block(Noise noise, u32 parameter, u32 block, u32 words[4]) {
    u32 key0 = (u32)noise.seed, key1 = (u32)(noise.seed >> 32);
    u32 a = block, b = parameter, c = (u32)noise.step, d = (u32)(noise.step >> 32);
#pragma unroll
    for (u32 round = 0; round < 7; round++) {
        u64 p = (u64)a * 0xD2511F53u, q = (u64)c * 0xCD9E8D57u;
        a = (u32)(q >> 32) ^ b ^ key0;
        b = (u32)q;
        c = (u32)(p >> 32) ^ d ^ key1;
        d = (u32)p;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    words[0] = a;
    words[1] = b;
    words[2] = c;
    words[3] = d;
}
