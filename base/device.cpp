#include "base/device.h"
#include <string_view>
#include <ATen/Context.h>
#include <c10/util/StringUtil.h>
#include "base/detail/parse_number.h"
#include "base/error.h"

namespace duet {

namespace {

int cuda_count() { return at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0; }

std::string present_devices() {
  std::string devices = "cpu";
  for (int i = 0; i < cuda_count(); ++i) devices += ", cuda:" + std::to_string(i);
  return devices;
}

[[noreturn]] void refuse(const std::string& text) {
  throw ConfigError(c10::str("[Device] found device '", text, "', expected auto, cpu, cuda or cuda:<index>; this ",
                             "machine has ", present_devices(), "; correct 'device'"));
}

c10::Device cuda_device(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

}  // namespace

bool cuda_available() { return cuda_count() > 0; }

// hasCUDA() would ask for a device; the runtime is there if LibTorch's CUDA library is.
bool built_with_cuda() { return at::globalContext().hasCUDART(); }

c10::Device parse_device(const std::string& text) {
  if (text == "cpu") return c10::DeviceType::CPU;
  if (text == "auto") return cuda_available() ? cuda_device(0) : c10::Device(c10::DeviceType::CPU);
  constexpr std::string_view kPrefix = "cuda:";
  int index = 0;
  if (text != "cuda") {
    if (text.compare(0, kPrefix.size(), kPrefix) != 0 || text.size() == kPrefix.size()) refuse(text);
    index = parse_number<int>(std::string_view(text).substr(kPrefix.size())).value_or(-1);
    if (index < 0) refuse(text);
  }
  if (index >= cuda_count()) refuse(text);
  return cuda_device(index);
}

}  // namespace duet
