#include <cstdio>
#include <iostream>
#include <sstream>
#include <nlohmann/json.hpp>
#include "checkpoint/checkpoint.h"
#include "cli/commands/commands.h"
#include "cli/report.h"

namespace duet {

namespace {

nlohmann::ordered_json to_json(const std::string& path, const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["path"] = path;
  json["verified"] = true;
  json["step"] = manifest.step;
  json["created"] = manifest.created;
  json["duet_version"] = manifest.duet_version;
  json["torch_version"] = manifest.torch_version;
  json["files"] = nlohmann::ordered_json::array();
  for (const CheckpointFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  }
  json["tensors"] = nlohmann::ordered_json::array();
  for (const CheckpointTensor& tensor : manifest.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"file", tensor.file},
                               {"dtype", tensor.dtype},
                               {"shape", tensor.shape},
                               {"bytes", tensor.bytes},
                               {"xxh3", tensor.xxh3}});
  }
  return json;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text << (i > 0 ? ", " : "") << shape[i];
  text << "]";
  return text.str();
}

}  // namespace

int inspect_command(const Arguments& arguments) {
  check_writable(arguments.json);
  const std::string path = CheckpointStore::find(arguments.checkpoint);
  const Manifest manifest = CheckpointStore::verify(path);
  write_json(arguments.json, to_json(path, manifest));
  std::printf("%s: step %lld, saved %s by duet %s with LibTorch %s\n", path.c_str(),
              static_cast<long long>(manifest.step), manifest.created.c_str(), manifest.duet_version.c_str(),
              manifest.torch_version.c_str());
  for (const CheckpointFile& file : manifest.files) {
    std::printf("  %-24s %12s  xxh3 %s\n", file.name.c_str(), readable_bytes(static_cast<int64_t>(file.bytes)).c_str(),
                file.xxh3.c_str());
  }
  std::printf("tensors: %zu\n", manifest.tensors.size());
  for (const CheckpointTensor& tensor : manifest.tensors) {
    std::printf("  %-44s %-5s %-20s %12s\n", tensor.name.c_str(), tensor.dtype.c_str(),
                shape_text(tensor.shape).c_str(), readable_bytes(static_cast<int64_t>(tensor.bytes)).c_str());
  }
  std::printf("verified: every hash matches\n");
  std::fflush(stdout);
  return 0;
}

}  // namespace duet
