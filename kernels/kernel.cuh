// How kernels are declared, and their built-in functions on a host.
#pragma once

#ifdef TCH_AMP_EMULATOR
#include "emulator/host/cuda.h"
#else
// `blocks` at a time on a multiprocessor bound the registers.
#define KERNEL(name, blocks, ...) \
    extern "C" __global__ void __launch_bounds__(256, blocks) name(__VA_ARGS__)
#endif

#include "layout.cuh"
