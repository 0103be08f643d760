// Looking for elements that are not finite, and summing squares.
#pragma once

#include "access.cuh"
#include "decide.cuh"

// What a thread has seen of a chunk.
struct Seen {
    float squares = 0;
    u32 found = 0;
    // All bits of magnitudes.
    u32 bits = 0;

    __device__ __forceinline__ void add(const float values[WIDTH]) {
#pragma unroll
        for (u32 k = 0; k < WIDTH; k++) {
            squares += values[k] * values[k];
            found |= not_finite(values[k]);
            bits |= __float_as_uint(values[k]) & 0x7FFFFFFF;
        }
    }
};

// Writes what the block has seen of a chunk, whose values `span` holds.
template <class T>
__device__ __forceinline__ void finish_chunk(const Seen& seen, const Span<T>& span, u64 end,
                                             Partial* partial) {
    double squares = block_sum(seen.squares);
    u32 found = __syncthreads_or(seen.found & FOUND_INF) ? FOUND_INF : 0;
    if (__syncthreads_or(seen.found & FOUND_NAN)) found |= FOUND_NAN;
    bool zero = !__syncthreads_or(seen.bits != 0);
    // Squares of very large and very small values leave FP32; those of FP32 are exact in FP64.
    bool exact = found || zero || (squares > 1e-25 && squares < 1e38);
    if (!exact) {
        double sum = 0;
        for (u64 i = threadIdx.x * WIDTH; i < end; i += THREADS * WIDTH) {
            for (u64 k = i; k < i + WIDTH && k < end; k++) {
                double value = T::decode(span.first[k]);
                sum += value * value;
            }
        }
        squares = block_sum(sum);
    }
    if (threadIdx.x == 0) *partial = Partial{squares, found, 0};
}

// Ends a kernel that checks: the last block to come decides.
__device__ __forceinline__ void finish_check(const Grads& grads, const Table& table,
                                             const Decision& how, State* state) {
    if (!how.decide_here) return;
    __shared__ bool last;
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&state->ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    decide(grads, table, how, state);
    if (threadIdx.x == 0) state->ticket = 0;
}
