#include "distributed/detail/gpu_identity.h"
#include <ATen/cuda/CUDAContextLight.h>

namespace duet {

std::string gpu_identity(c10::Device device) {
  if (!device.is_cuda()) return {};
  const cudaDeviceProp* properties = nullptr;
  try {
    properties = at::cuda::getDeviceProperties(device.index());
  } catch (const c10::Error&) {
    return {};
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  const auto& bytes = properties->uuid.bytes;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(bytes[i]);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

}  // namespace duet
