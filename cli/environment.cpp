#include "cli/environment.h"
#include <thread>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <CLI/Version.hpp>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>
#include <unistd.h>
#include "base/device.h"
#include "cli/report.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

Json versions() {
  return {{"duet", DUET_VERSION},
          {"libtorch", TORCH_VERSION},
          {"compiler", __VERSION__},
          {"nlohmann_json",
           c10::str(NLOHMANN_JSON_VERSION_MAJOR, ".", NLOHMANN_JSON_VERSION_MINOR, ".", NLOHMANN_JSON_VERSION_PATCH)},
          {"cli11", CLI11_VERSION},
          {"mkl", at::hasMKL() ? "yes" : "no"},
          {"onednn", at::hasMKLDNN() ? "yes" : "no"}};
}

Json machine() {
  const auto pages = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES));
  return {{"device", c10::str(parse_device("auto"))},
          {"cuda", cuda_available()    ? "available"
                   : built_with_cuda() ? "no device is visible"
                                       : "not in this LibTorch"},
          {"cuda_devices", cuda_available() ? static_cast<int64_t>(at::detail::getCUDAHooks().deviceCount()) : 0},
          {"cpu", at::get_cpu_capability()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads", at::get_num_threads()},
          {"memory", readable_bytes(pages * sysconf(_SC_PAGESIZE))}};
}

}  // namespace

Json environment_json() { return {{"versions", versions()}, {"machine", machine()}}; }

}  // namespace duet
