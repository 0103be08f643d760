// The decisions of a step, by one block, from what the checks of all chunks found.
#pragma once

#include "numbers.cuh"
#include "reduce.cuh"

// One step of the loss scale's state machine.
__device__ inline void update_scale(State& state, const Decision& how, bool overflow) {
    if (overflow) {
        bool at_floor = !how.dynamic || state.scale <= how.min_scale;
        state.unskipped = 0;
        state.skipped += 1;
        state.skipped_in_a_row += 1;
        state.stuck_in_a_row = at_floor ? state.stuck_in_a_row + 1 : 0;
        if (!how.dynamic) return;
        if (state.overflows_left > 0) state.overflows_left -= 1;
        if (state.overflows_left == 0) {
            double lower = (float)(state.scale * how.backoff_factor);
            state.scale = lower > how.min_scale ? lower : how.min_scale;
        }
        return;
    }
    state.unskipped += 1;
    state.skipped_in_a_row = 0;
    state.stuck_in_a_row = 0;
    if (!how.dynamic) return;
    if (how.refill_on_good_step) state.overflows_left = how.hysteresis;
    if (state.unskipped < how.growth_interval) return;
    double grown = state.scale * how.growth_factor;
    // A scale that would leave FP32 stays as it is.
    if (grown <= 3.4028234663852886e38) {
        double higher = (float)grown;
        state.scale = higher < how.max_scale ? higher : how.max_scale;
    }
    state.unskipped = 0;
    state.overflows_left = how.hysteresis;
}

// `found` and `found_in` are set.
__device__ inline void settle(State& state, const Decision& how, double squares) {
    double inverse = how.scaled ? 1 / state.scale : 1;
    double norm = sqrt(squares) * inverse;
    double clip = how.max_norm / (norm + 1e-6);
    // Also without a limit, and where the norm is not a number.
    if (!(clip < 1)) clip = 1;
    state.norm = norm;
    state.clip = (float)clip;
    state.factor = (float)(inverse * clip);
    state.skip = state.found != 0;
    update_scale(state, how, state.skip);
    state.inverse_scale = (float)(1 / state.scale);
}

__device__ inline void decide(const Grads& grads, const Table& table, const Decision& how,
                              State* state) {
    const Partial* partials = (const Partial*)table.partials;
    const Chunk* chunks = (const Chunk*)table.chunks;
    double squares = 0;
    u32 first = ~0u;
    for (u32 c = threadIdx.x; c < table.chunk_count; c += THREADS) {
        squares += partials[c].squares;
        if (partials[c].found && chunks[c].tensor < first) first = chunks[c].tensor;
    }
    squares = block_sum(squares);
    first = block_min(first);
    bool nan = false;
    for (u32 c = threadIdx.x; c < table.chunk_count; c += THREADS) {
        nan |= chunks[c].tensor == first && partials[c].found & FOUND_NAN;
    }
    nan = __syncthreads_or(nan);
    if (threadIdx.x == 0) {
        state->found = first == ~0u ? 0 : nan ? FOUND_NAN : FOUND_INF;
        state->found_in = state->found ? first : 0;
        settle(*state, how, squares);
    }
    if (first != ~0u || !how.progress) return;
    Progress* progress = (Progress*)how.progress;
    const Tensor* tensors = (const Tensor*)table.tensors;
    for (u32 t = threadIdx.x; t < table.tensor_count; t += THREADS) {
        if (!grads.pointer[t]) continue;
        progress[t].step += 1;
        if (!how.betas) continue;
        const Betas& betas = ((const Betas*)how.betas)[tensors[t].group];
        progress[t].correction[0] = 1 - power(betas.beta[0], progress[t].step);
        progress[t].correction[1] = 1 - power(betas.beta[1], progress[t].step);
    }
}
