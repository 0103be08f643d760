// All kernels, and their launch from Rust.
#include "emulator/host/cuda.h"

#include "gradients.cu"
#include "adagrad.cu"
#include "adam.cu"
#include "lamb.cu"
#include "sgd.cu"

// As `cuLaunchKernel`, for one-dimensional grids. Seed 0 keeps threads and blocks in order.
// Returns 0, 1 for an unknown kernel, or 2 for a mistake in the kernel, which `message` tells.
extern "C" __attribute__((visibility("default"))) int tch_amp_emulate(
    const char* name, unsigned blocks, unsigned threads, void** arguments, unsigned long long seed,
    char* message, size_t size) {
    auto found = emulator::kernels().find(name);
    if (found == emulator::kernels().end()) return 1;
    std::string fault = emulator::launch(found->second, blocks, threads, arguments, seed);
    if (fault.empty()) return 0;
    std::snprintf(message, size, "%s", fault.c_str());
    return 2;
}
