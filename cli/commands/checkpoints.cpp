#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "cli/commands/commands.h"
#include "cli/ranks.h"
#include "cli/report.h"

namespace duet {

// `duet inspect` and `duet export`.

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::string& path, const Manifest& manifest) {
  Json json;
  json["path"] = path;
  json["verified"] = true;
  json["step"] = manifest.step;
  json["created"] = manifest.created;
  json["duet_version"] = manifest.duet_version;
  json["torch_version"] = manifest.torch_version;
  put_unchecked(json, manifest.run.unchecked);
  json["suspect"] = manifest.suspect;
  json["files"] = Json::array();
  for (const CheckpointFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  }
  json["tensors"] = Json::array();
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

using FurtherNames = std::map<std::string, std::string>;

Json to_json(const Arguments& arguments, const StateDict& weights, const FurtherNames& tied) {
  Json json;
  json["checkpoint"] = arguments.checkpoint;
  json["weights"] = arguments.weights;
  json["file"] = arguments.file;
  json["bytes"] = std::filesystem::file_size(arguments.file);
  json["tensors"] = Json::array();
  for (const auto& [name, tensor] : weights.tensors()) {
    if (tied.contains(name)) continue;
    json["tensors"].push_back(
        {{"name", name}, {"dtype", c10::str(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}});
  }
  json["tied"] = tied;
  return json;
}

// "3 tensors", or "3 tensors under 4 names" if some are tied.
std::string count_text(const StateDict& weights, const FurtherNames& tied) {
  const std::size_t names = weights.tensors().size();
  const std::string text = c10::str(names - tied.size(), " tensors");
  return tied.empty() ? text : c10::str(text, " under ", names, " names");
}

}  // namespace

int inspect_command(const Arguments& arguments) {
  refuse_ranks("inspect");
  check_writable(arguments.json);
  const std::string path = CheckpointStore::find(arguments.checkpoint);
  const Manifest manifest = CheckpointStore::verify(path);
  write_json(arguments.json, to_json(path, manifest));
  std::printf("%s: step %lld, saved %s by duet %s with LibTorch %s\n", one_line(path).c_str(),
              static_cast<long long>(manifest.step), one_line(manifest.created).c_str(),
              one_line(manifest.duet_version).c_str(), one_line(manifest.torch_version).c_str());
  if (manifest.run.unchecked) std::printf("host code: %s\n", to_text(*manifest.run.unchecked).c_str());
  if (!manifest.suspect.empty()) std::printf("SUSPECT: %s\n", manifest.suspect.c_str());
  for (const CheckpointFile& file : manifest.files) {
    std::printf("  %-24s %12s  xxh3 %s\n", one_line(file.name).c_str(),
                readable_bytes(static_cast<int64_t>(file.bytes)).c_str(), one_line(file.xxh3).c_str());
  }
  std::printf("tensors: %zu\n", manifest.tensors.size());
  for (const CheckpointTensor& tensor : manifest.tensors) {
    std::printf("  %-44s %-5s %-20s %12s\n", one_line(tensor.name).c_str(), one_line(tensor.dtype).c_str(),
                c10::str(at::IntArrayRef(tensor.shape)).c_str(),
                readable_bytes(static_cast<int64_t>(tensor.bytes)).c_str());
  }
  std::printf("verified: every hash matches\n");
  std::fflush(stdout);
  return 0;
}

int export_command(const Arguments& arguments) {
  refuse_ranks("export");
  check_writable(arguments.json);
  const StateDict weights = read_weights({.path = arguments.checkpoint, .which = arguments.weights});
  write_weights(arguments.file, weights);
  const FurtherNames tied = aliases_of(weights);
  write_json(arguments.json, to_json(arguments, weights, tied));
  std::cout << "wrote " << count_text(weights, tied) << " ("
            << readable_bytes(static_cast<int64_t>(std::filesystem::file_size(arguments.file))) << ") to "
            << arguments.file << std::endl;
  return 0;
}

}  // namespace duet
