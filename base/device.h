#pragma once

#include <string>
#include <c10/core/Device.h>

namespace duet {

// "auto" (CUDA if there is a device, else CPU), "cpu", "cuda" or "cuda:<index>".
// Throws ConfigError that says what this machine has.
c10::Device parse_device(const std::string& text);

bool cuda_available();

// Whether this LibTorch is one with CUDA, be there a device or not.
bool built_with_cuda();

}  // namespace duet
