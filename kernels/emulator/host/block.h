// A block of threads as fibers: they take turns at barriers and shuffles alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

struct Index {
    unsigned x;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

enum class Wait { None, Barrier, Warp, Done };

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Wait wait;
    bool vote;
    uint64_t given;
};

inline std::vector<Fiber> fibers;
inline std::vector<uint64_t> given;
inline ucontext_t scheduler;
inline bool any;
inline std::string fault;
inline std::function<void()> body;
// A kernel gets its own copy of 32,000 bytes of pointers.
constexpr size_t STACK = 1 << 18;

inline void pause(Wait wait) {
    unsigned self = threadIdx.x;
    fibers[self].wait = wait;
    swapcontext(&fibers[self].context, &scheduler);
    threadIdx.x = self;
}

// Ends the launch, which returns the first message.
inline void fail(const char* message) {
    if (fault.empty()) {
        fault = std::string(message) + " (block " + std::to_string(blockIdx.x) + ", thread " +
                std::to_string(threadIdx.x) + ")";
    }
    pause(Wait::Done);
}

inline bool barrier(bool vote) {
    fibers[threadIdx.x].vote = vote;
    pause(Wait::Barrier);
    return any;
}

inline uint64_t shuffle(uint64_t value, unsigned lane) {
    unsigned self = threadIdx.x;
    fibers[self].given = value;
    pause(Wait::Warp);
    return given[self / 32 * 32 + lane % 32];
}

inline void enter() {
    body();
    pause(Wait::Done);
}

inline unsigned count(Wait wait, unsigned from, unsigned to) {
    unsigned found = 0;
    for (unsigned t = from; t < to; t++) found += fibers[t].wait == wait;
    return found;
}

// Lets whole warps that wait for a shuffle go on, or all threads that wait at a barrier.
inline bool release(unsigned threads) {
    bool released = false;
    for (unsigned warp = 0; warp < threads; warp += 32) {
        if (count(Wait::Warp, warp, warp + 32) < 32) continue;
        for (unsigned t = warp; t < warp + 32; t++) {
            given[t] = fibers[t].given;
            fibers[t].wait = Wait::None;
        }
        released = true;
    }
    if (count(Wait::Barrier, 0, threads) == threads) {
        any = false;
        for (unsigned t = 0; t < threads; t++) any |= fibers[t].vote;
        for (unsigned t = 0; t < threads; t++) fibers[t].wait = Wait::None;
        released = true;
    }
    return released;
}

inline std::vector<unsigned> order(unsigned count, std::mt19937_64* random) {
    std::vector<unsigned> all(count);
    for (unsigned i = 0; i < count; i++) all[i] = i;
    if (random) {
        for (unsigned i = count; i > 1; i--) std::swap(all[i - 1], all[(*random)() % i]);
    }
    return all;
}

inline void run_block(unsigned threads, std::mt19937_64* random) {
    for (unsigned t = 0; t < threads; t++) {
        Fiber& fiber = fibers[t];
        fiber.wait = Wait::None;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, enter, 0);
    }
    while (fault.empty()) {
        for (unsigned t : order(threads, random)) {
            if (fibers[t].wait != Wait::None) continue;
            threadIdx.x = t;
            swapcontext(&scheduler, &fibers[t].context);
        }
        if (count(Wait::Done, 0, threads) == threads) return;
        if (!release(threads) && fault.empty()) {
            fault = "some threads do not come to a barrier or shuffle (block " +
                    std::to_string(blockIdx.x) + ")";
        }
    }
}

typedef std::function<void(void**)> Kernel;

inline std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(std::remove_const_t<A>*)arguments[I]...);
}

template <class... A>
bool add(const char* name, void (*kernel)(A...)) {
    kernels()[name] = [kernel](void** arguments) {
        call(kernel, arguments, std::index_sequence_for<A...>{});
    };
    return true;
}

// Returns what went wrong, or nothing.
inline std::string launch(const Kernel& kernel, unsigned blocks, unsigned threads, void** arguments,
                          uint64_t seed) {
    std::mt19937_64 random(seed);
    fibers.resize(threads);
    given.assign(threads, 0);
    for (Fiber& fiber : fibers) {
        if (!fiber.stack) fiber.stack.reset(new char[STACK]);
    }
    fault.clear();
    body = [&] { kernel(arguments); };
    gridDim.x = blocks;
    blockDim.x = threads;
    for (unsigned block : order(blocks, seed ? &random : nullptr)) {
        blockIdx.x = block;
        run_block(threads, seed ? &random : nullptr);
        if (!fault.empty()) break;
    }
    return fault;
}

}  // namespace emulator
