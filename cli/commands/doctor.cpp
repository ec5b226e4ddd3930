#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include "base/device.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "cli/zoo/fashion_mnist.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// What does not work on this machine and how to get it.
std::vector<std::string> missing() {
  std::vector<std::string> list;
  std::error_code ignored;
  const std::string root = FashionMnistOptions{}.root;
  if (!std::filesystem::is_directory(root, ignored)) {
    list.push_back("Fashion-MNIST (" + root + "): apt install dataset-fashion-mnist, or set data.*.root");
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
  return list;
}

}  // namespace

int doctor_command(const Arguments& arguments) {
  Json json = environment_json();
  std::error_code ignored;
  json["machine"]["disk_free"] = readable_bytes(static_cast<int64_t>(std::filesystem::space(".", ignored).available));
  json["missing"] = missing();
  write_json(arguments.json, json);
  for (const char* part : {"versions", "machine"}) {
    std::vector<std::vector<std::string>> rows = {{part}};
    for (const auto& [key, value] : json[part].items())
      rows.push_back({"  " + key, value.is_string() ? value.get<std::string>() : value.dump()});
    std::cout << text_columns(rows);
  }
  std::cout << (json["missing"].empty() ? "nothing is missing" : "missing") << '\n';
  for (const auto& item : json["missing"]) std::cout << "  " << item.get<std::string>() << '\n';
  std::cout.flush();
  return 0;
}

}  // namespace duet
