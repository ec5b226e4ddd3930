#pragma once

#include <string>
#include <c10/core/Device.h>

namespace duet {

// What tells this GPU from any other, on whatever machine and under whatever index: "GPU-" and its UUID, as nvidia-smi
// -L shows it. Empty for another device, and where CUDA does not answer: whoever uses it next will hear why. Private to
// distributed/.
std::string gpu_identity(c10::Device device);

}  // namespace duet
