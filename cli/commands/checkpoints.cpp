#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>
#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/run_folder.h"
#include "cli/runs/text_columns.h"
#include "core/model_file.h"

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
  const std::string path = CheckpointStore::find(arguments.checkpoint);
  const Manifest manifest = CheckpointStore::verify(path);
  write_json(arguments.json, to_json(path, manifest));
  std::cout << one_line(path) << ": step " << manifest.step << ", saved " << one_line(manifest.created) << " by duet "
            << one_line(manifest.duet_version) << " with LibTorch " << one_line(manifest.torch_version) << "\n";
  if (manifest.run.unchecked) std::cout << "host code: " << to_text(*manifest.run.unchecked) << "\n";
  if (!manifest.suspect.empty()) std::cout << "SUSPECT: " << manifest.suspect << "\n";
  std::vector<std::vector<std::string>> files, tensors;
  for (const CheckpointFile& file : manifest.files) {
    files.push_back({"  " + file.name, readable_bytes(static_cast<int64_t>(file.bytes)), "xxh3 " + file.xxh3});
  }
  for (const CheckpointTensor& tensor : manifest.tensors) {
    tensors.push_back({"  " + tensor.name, tensor.dtype, c10::str(at::IntArrayRef(tensor.shape)),
                       readable_bytes(static_cast<int64_t>(tensor.bytes))});
  }
  std::cout << text_columns(files) << "tensors: " << tensors.size() << "\n"
            << text_columns(tensors) << "verified: every hash matches" << std::endl;
  return 0;
}

namespace {

// The file that the model of a checkpoint came from, by the config that its run has saved.
std::string model_file_of(const std::string& checkpoint) {
  const std::filesystem::path step = std::filesystem::absolute(CheckpointStore::find(checkpoint)).lexically_normal();
  const std::string folder = step.parent_path().parent_path();  // of work_dir/checkpoints/step-N
  const std::string path = read_saved_config(folder + "/config.yaml").text("model.path");
  if (!path.empty()) return path;
  throw ConfigError(
      "[duet] '" + folder +
      "/config.yaml' names no file in model.path, expected the one that the model came from; name it with "
      "--model");
}

// The model's own file where that is asked for, otherwise the weights alone.
void export_to(const Arguments& arguments, const StateDict& weights) {
  const bool is_exported = arguments.file.ends_with(".pt2");
  if (is_exported) {
    const std::string source = arguments.model.empty() ? model_file_of(arguments.checkpoint) : arguments.model;
    write_exported_model(arguments.file, source, weights);
  } else if (!arguments.model.empty()) {
    write_script_model(arguments.file, arguments.model, weights);
  } else {
    write_weights(arguments.file, weights);
  }
}

}  // namespace

int export_command(const Arguments& arguments) {
  const StateDict weights = read_weights({.path = arguments.checkpoint, .which = arguments.weights});
  export_to(arguments, weights);
  const FurtherNames tied = aliases_of(weights);
  write_json(arguments.json, to_json(arguments, weights, tied));
  std::cout << "wrote " << count_text(weights, tied) << " ("
            << readable_bytes(static_cast<int64_t>(std::filesystem::file_size(arguments.file))) << ") to "
            << arguments.file << std::endl;
  return 0;
}

}  // namespace duet
