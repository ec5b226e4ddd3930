#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/device.h"
#include "cli/commands/commands.h"
#include "cli/environment.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "cli/zoo/fashion_mnist.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> missing_dataset_files() {
  std::vector<std::string> missing;
  const std::string root = FashionMnistOptions{}.root;
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const std::string path = root + "/" + name;
    if (!std::filesystem::exists(path + ".gz") && !std::filesystem::exists(path)) missing.push_back(path + ".gz");
  }
  return missing;
}

// What does not work on this machine and how to get it.
std::vector<std::string> missing() {
  std::vector<std::string> list;
  if (const auto files = missing_dataset_files(); !files.empty()) {
    list.push_back("Fashion-MNIST (" + join(files) + "): apt install dataset-fashion-mnist, or set data.*.root");
  }
  if (!std::filesystem::exists("/usr/share/common-licenses/GPL-3")) {
    list.emplace_back(
        "the text /usr/share/common-licenses/GPL-3 that the Text dataset reads by default: set data.*.path");
  }
  if (!built_with_cuda()) {
    list.emplace_back(
        "CUDA: this LibTorch is built without it, so training runs on the CPU; for a GPU point DUET_TORCH at "
        "one with CUDA and build anew");
  } else if (!cuda_available()) {
    list.emplace_back(
        "a CUDA device: LibTorch has CUDA but sees no device, so training runs on the CPU; if there is a GPU, "
        "check its driver (nvidia-smi) and CUDA_VISIBLE_DEVICES");
  }
  if (access(".", W_OK) != 0) list.emplace_back("write access to the current folder: set work_dir to another one");
  return list;
}

void print(const char* title, const Json& values) {
  std::vector<std::vector<std::string>> rows = {{title}};
  for (const auto& [key, value] : values.items())
    rows.push_back({"  " + key, value.is_string() ? value.get<std::string>() : value.dump()});
  std::cout << text_columns(rows);
}

}  // namespace

int doctor_command(const Arguments& arguments) {
  Json json = environment_json();
  std::error_code ignored;
  json["machine"]["disk_free"] = readable_bytes(static_cast<int64_t>(std::filesystem::space(".", ignored).available));
  json["missing"] = missing();
  write_json(arguments.json, json);
  print("versions", json["versions"]);
  print("machine", json["machine"]);
  std::cout << (json["missing"].empty() ? "nothing is missing" : "missing") << '\n';
  for (const auto& item : json["missing"]) std::cout << "  " << item.get<std::string>() << '\n';
  std::cout.flush();
  return 0;
}

}  // namespace duet
