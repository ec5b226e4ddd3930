#pragma once

#include <dlfcn.h>

// SLEEF's functions that ATen's vectors call: LibTorch carries and exports them. For the vectors of *_simd.h, which is
// included before.

namespace duet {

namespace {

using VectorFunction = Floats (*)(Floats);
VectorFunction vector_exp = nullptr, vector_log = nullptr, vector_tanh = nullptr;

bool find_vector_functions() {
  const auto find = [](const char* name) { return reinterpret_cast<VectorFunction>(dlsym(RTLD_DEFAULT, name)); };
  vector_exp = find(kVectorExp), vector_log = find(kVectorLog), vector_tanh = find(kVectorTanh);
  return vector_exp != nullptr && vector_log != nullptr && vector_tanh != nullptr;
}

}  // namespace

}  // namespace duet
