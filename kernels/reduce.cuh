// Sums over the threads of a block, in an order that is always the same.
#pragma once

#include "kernel.cuh"

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (u32 lanes = 16; lanes; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
    return value;
}

// The sum, in every thread.
template <class T>
__device__ __forceinline__ T block_sum(T value) {
    __shared__ T warps[THREADS / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (u32 warp = 0; warp < THREADS / 32; warp++) value += warps[warp];
    // The next sum may use the same memory.
    __syncthreads();
    return value;
}

// The least value, in every thread.
__device__ __forceinline__ u32 block_min(u32 value) {
    __shared__ u32 least;
    if (threadIdx.x == 0) least = ~0u;
    __syncthreads();
    atomicMin(&least, value);
    __syncthreads();
    value = least;
    __syncthreads();
    return value;
}
