// Reading and writing eight elements at a time.
#pragma once

#include "numbers.cuh"

// A part of a tensor in memory.
template <class T>
struct Span {
    typename T::Bits* first;
    bool aligned;

    __device__ __forceinline__ Span(u64 pointer, u64 offset)
        : first((typename T::Bits*)pointer + offset), aligned((u64)first % 16 == 0) {}
};

__device__ __forceinline__ void unpack(const Span<F32>& span, u64 i, float values[WIDTH]) {
    const float4* from = (const float4*)(span.first + i);
    float4 a = __ldcs(from), b = __ldcs(from + 1);
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
}

template <class T>
__device__ __forceinline__ void unpack(const Span<T>& span, u64 i, float values[WIDTH]) {
    uint4 packed = __ldcs((const uint4*)(span.first + i));
    u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (u32 k = 0; k < WIDTH; k++) values[k] = T::decode((u16)(words[k / 2] >> 16 * (k % 2)));
}

__device__ __forceinline__ void pack(const Span<F32>& span, u64 i, const float values[WIDTH]) {
    float4* to = (float4*)(span.first + i);
    __stcs(to, make_float4(values[0], values[1], values[2], values[3]));
    __stcs(to + 1, make_float4(values[4], values[5], values[6], values[7]));
}

template <class T>
__device__ __forceinline__ void pack(const Span<T>& span, u64 i, const u16 bits[WIDTH]) {
    u32 words[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) words[k] = bits[2 * k] | (u32)bits[2 * k + 1] << 16;
    __stcs((uint4*)(span.first + i), make_uint4(words[0], words[1], words[2], words[3]));
}

// Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ void encode(const float values[WIDTH], typename T::Bits bits[WIDTH]) {
#pragma unroll
    for (u32 k = 0; k < WIDTH; k++) bits[k] = T::encode(values[k]);
}

// Elements from `i` on, and 0 for those from `end` on. `wide` says that all are there and aligned: a
// loop over such has no other accesses.
template <class T>
__device__ __forceinline__ void load(bool wide, const Span<T>& span, u64 i, u64 end,
                                     float values[WIDTH]) {
    if (wide) return unpack(span, i, values);
#pragma unroll
    for (u32 k = 0; k < WIDTH; k++) values[k] = i + k < end ? T::decode(span.first[i + k]) : 0.0f;
}

template <class T>
__device__ __forceinline__ void store_bits(bool wide, const Span<T>& span, u64 i, u64 end,
                                           const typename T::Bits bits[WIDTH]) {
    if (wide) return pack(span, i, bits);
#pragma unroll
    for (u32 k = 0; k < WIDTH; k++) {
        if (i + k < end) span.first[i + k] = bits[k];
    }
}

template <class T>
__device__ __forceinline__ void store(bool wide, const Span<T>& span, u64 i, u64 end,
                                      const float values[WIDTH]) {
    typename T::Bits bits[WIDTH];
    encode<T>(values, bits);
    store_bits(wide, span, i, end, bits);
}

// Calls `work` for eight elements at a time, and tells whether they are all there and aligned. A
// thread gets the same ones whatever the alignment.
template <u32 UNROLL = 1, class Work>
__device__ __forceinline__ void by_eight(bool aligned, u64 end, Work work) {
    u64 whole = aligned ? end / WIDTH * WIDTH : 0, i = threadIdx.x * WIDTH;
#pragma unroll UNROLL
    for (; i < whole; i += THREADS * WIDTH) work(true, i);
    for (; i < end; i += THREADS * WIDTH) work(false, i);
}

__device__ __forceinline__ u64 chunk_end(const Table& table, const Chunk& chunk, u64 elements) {
    u64 left = elements - chunk.offset;
    return left < table.chunk_elements ? left : table.chunk_elements;
}
