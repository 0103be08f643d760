// libtorch's CUDA half: a library of its own, whose operations register when it is loaded.
//
// A program that uses none of its symbols is not linked to it, so that it would see no GPU. It is loaded here before
// `main`, where the installed libtorch has it.
#pragma once

#ifndef _WIN32
#include <dlfcn.h>
#endif

#include <string>

namespace tch_amp {

inline const char* libtorch_path() {
#ifdef _WIN32
  return nullptr;
#else
  Dl_info found{};
  const void* symbol = reinterpret_cast<const void*>(&at::globalContext);
  return dladdr(symbol, &found) != 0 ? found.dli_fname : nullptr;
#endif
}

inline bool load_libtorch_cuda() {
#ifdef _WIN32
  return false;
#else
  const char* path = libtorch_path();
  const char* slash = path != nullptr ? strrchr(path, '/') : nullptr;
  if (slash == nullptr) {
    return false;
  }
  const std::string name = std::string(path, slash + 1) + "libtorch_cuda.so";
  return dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
#endif
}

inline const bool libtorch_cuda = load_libtorch_cuda();

} // namespace tch_amp
