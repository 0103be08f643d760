// What the host fills in and reads back. Each struct has a twin in Rust, of the same size.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 THREADS = 256;
// Elements of a thread at a time: 16 bytes of a 16-bit type.
constexpr u32 WIDTH = 8;
constexpr u32 MAX_TENSORS = 4000;

// Where the gradients are, by tensor; 0 where there is none. A kernel's parameters may have 32,764
// bytes, so that the pointers need no upload.
struct Grads {
    u64 pointer[MAX_TENSORS];
};

// Everything of a tensor but its gradient. Pointers that a kernel does not use may be 0.
struct Tensor {
    u64 weight;
    // The model's 16-bit weight where `weight` is its FP32 master; the sum or the result of the
    // kernels that scale and accumulate.
    u64 copy;
    u64 state[2];
    u64 elements;
    // Tells parameters apart in the random bits of stochastic rounding.
    u32 noise;
    // The settings that the tensor goes by.
    u32 group;
};

// A piece of a tensor, from `offset` on, of as many elements as the launch's chunks have, or what
// is left. Offsets are multiples of `WIDTH`.
struct Chunk {
    u64 offset;
    u32 tensor;
    u32 reserved;
};

// The chunks of a launch. One block takes every `gridDim.x`-th.
struct Table {
    u64 tensors;
    u64 chunks;
    u64 partials;
    u64 chunk_elements;
    u32 chunk_count;
    u32 tensor_count;
};

constexpr u32 FOUND_INF = 1;
constexpr u32 FOUND_NAN = 2;

// What a check found in one chunk.
struct Partial {
    double squares;
    u32 found;
    u32 reserved;
};

// A tensor's steps, and 1 - beta^step.
struct Progress {
    u64 step;
    double correction[2];
};

// One loss scale and the decisions of one step.
struct State {
    double scale;
    double norm;
    u64 unskipped;
    u64 skipped;
    u64 skipped_in_a_row;
    u64 stuck_in_a_row;
    u32 overflows_left;
    float inverse_scale;
    // What the update multiplies gradients by.
    float factor;
    float clip;
    u32 skip;
    // `FOUND_INF` or `FOUND_NAN` and the first tensor it is in, or 0.
    u32 found;
    u32 found_in;
    // Blocks that are done; 0 between launches.
    u32 ticket;
};

// How a step is decided.
struct Decision {
    u64 progress;
    // `Betas` by group; 0 where nothing is corrected.
    u64 betas;
    double growth_factor;
    double backoff_factor;
    double min_scale;
    double max_scale;
    // Infinity does not clip.
    double max_norm;
    u32 growth_interval;
    u32 hysteresis;
    // Whether every good step refills the count of overflows, or growth alone.
    u32 refill_on_good_step;
    u32 dynamic;
    // Whether the gradients are still multiplied by the scale.
    u32 scaled;
    // 0 leaves the decisions to `decide`, after more launches or an exchange between processes.
    u32 decide_here;
};

struct Betas {
    double beta[2];
};

struct Noise {
    u64 seed;
    u64 step;
};

struct AdamSettings {
    double lr;
    double beta[2];
    double eps;
    double weight_decay;
    u32 decoupled;
    u32 reserved;
};

struct SgdSettings {
    double lr;
    double momentum;
    double dampening;
    double weight_decay;
    u32 nesterov;
    u32 reserved;
};

struct AdagradSettings {
    double lr;
    double eps;
    double weight_decay;
    u32 decoupled;
    u32 reserved;
};

struct LambSettings {
    double lr;
    double beta[2];
    // What gradients enter the first moment multiplied by.
    double fresh;
    double eps;
    double weight_decay;
    // Infinity does not clip.
    double max_grad_norm;
    u32 decoupled;
    // Whether steps are as long as the weights.
    u32 trust;
};

static_assert(sizeof(Grads) == 32000, "");
static_assert(sizeof(Tensor) == 48, "");
static_assert(sizeof(Chunk) == 16, "");
static_assert(sizeof(Table) == 40, "");
static_assert(sizeof(Partial) == 16, "");
static_assert(sizeof(Progress) == 24, "");
static_assert(sizeof(State) == 80, "");
static_assert(sizeof(Decision) == 80, "");
static_assert(sizeof(Betas) == 16, "");
static_assert(sizeof(Noise) == 16, "");
static_assert(sizeof(AdamSettings) == 48, "");
static_assert(sizeof(SgdSettings) == 40, "");
static_assert(sizeof(AdagradSettings) == 32, "");
static_assert(sizeof(LambSettings) == 64, "");
