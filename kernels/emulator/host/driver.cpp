// A CUDA driver whose device is this CPU: it keeps the rules of the real one and runs kernels on the
// emulator.
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "kernels.cpp"

namespace {

constexpr int OK = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
              INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719;
constexpr unsigned MULTIPROCESSORS = 2;

// Compiled code, kept to see which kernels are in it.
struct Image {
    std::string bytes;
};
struct Function {
    std::string name;
};

int context;
thread_local unsigned contexts;
std::mutex running;
uint64_t launches;

// The sections of an ELF file end where the file does.
size_t elf_size(const unsigned char* image) {
    uint64_t sections;
    uint16_t size, count;
    std::memcpy(&sections, image + 40, sizeof sections);
    std::memcpy(&size, image + 58, sizeof size);
    std::memcpy(&count, image + 60, sizeof count);
    return sections + (size_t)size * count;
}

// Adds a line to the list of launches, if one is asked for.
void note(const char* kernel, unsigned blocks) {
    const char* path = std::getenv("TCH_AMP_EMULATED_LAUNCHES");
    if (!path) return;
    if (FILE* list = std::fopen(path, "a")) {
        std::fprintf(list, "%s %u\n", kernel, blocks);
        std::fclose(list);
    }
}

}  // namespace

extern "C" {

void tch_amp_runs_on_cpu() {}

int cuInit(unsigned) { return OK; }

int cuDriverGetVersion(int* version) {
    const char* given = std::getenv("TCH_AMP_EMULATED_CUDA");
    *version = given ? std::atoi(given) : 13000;
    return OK;
}

int cuGetErrorString(int code, const char** text) {
    switch (code) {
        case INVALID_DEVICE: *text = "invalid device ordinal"; return OK;
        case INVALID_IMAGE: *text = "device kernel image is invalid"; return OK;
        case INVALID_CONTEXT: *text = "invalid device context"; return OK;
        case NOT_FOUND: *text = "named symbol not found"; return OK;
        case LAUNCH_FAILED: *text = "unspecified launch failure"; return OK;
        default: *text = nullptr; return INVALID_VALUE;
    }
}

int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? OK : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 16 ? MULTIPROCESSORS : attribute == 75 ? 9 : 0;
    return OK;
}

int cuDevicePrimaryCtxRetain(void** to, int) {
    *to = &context;
    return OK;
}

int cuCtxPushCurrent_v2(void* pushed) {
    if (pushed != &context) return INVALID_CONTEXT;
    contexts++;
    return OK;
}

int cuCtxPopCurrent_v2(void** popped) {
    if (!contexts) return INVALID_CONTEXT;
    contexts--;
    *popped = &context;
    return OK;
}

int cuModuleLoadData(void** module, const void* image) {
    if (!contexts) return INVALID_CONTEXT;
    bool elf = !std::memcmp(image, "\x7f" "ELF", 4);
    if (!elf && !std::strstr((const char*)image, ".version")) return INVALID_IMAGE;
    size_t size = elf ? elf_size((const unsigned char*)image) : std::strlen((const char*)image);
    *module = new Image{std::string((const char*)image, size)};
    return OK;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
    if (!contexts) return INVALID_CONTEXT;
    bool compiled = ((Image*)module)->bytes.find(name) != std::string::npos;
    if (!compiled || !emulator::kernels().count(name)) return NOT_FOUND;
    *function = new Function{name};
    return OK;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
    *blocks = 2;
    return OK;
}

int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                   unsigned threads_y, unsigned threads_z, unsigned, void*, void** arguments,
                   void**) {
    if (!contexts) return INVALID_CONTEXT;
    if (!x || y != 1 || z != 1 || threads != 256 || threads_y != 1 || threads_z != 1) {
        return INVALID_VALUE;
    }
    std::lock_guard<std::mutex> alone(running);
    char message[256];
    const char* name = ((Function*)function)->name.c_str();
    note(name, x);
    // Each launch has an order of threads and blocks of its own.
    int code = tch_amp_emulate(name, x, threads, arguments, ++launches, message, sizeof message);
    if (code == 0) return OK;
    std::fprintf(stderr, "%s: %s\n", name, code == 2 ? message : "unknown");
    return LAUNCH_FAILED;
}

}  // extern "C"
