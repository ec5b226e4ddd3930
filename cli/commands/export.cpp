#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "checkpoint/weights_file.h"
#include "cli/commands/commands.h"
#include "cli/report.h"

namespace duet {

namespace {

using FurtherNames = std::map<std::string, std::string>;

nlohmann::ordered_json to_json(const Arguments& arguments, const StateDict& weights, const FurtherNames& tied) {
  nlohmann::ordered_json json;
  json["checkpoint"] = arguments.checkpoint;
  json["weights"] = arguments.weights;
  json["file"] = arguments.file;
  json["bytes"] = std::filesystem::file_size(arguments.file);
  json["tensors"] = nlohmann::ordered_json::array();
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

int export_command(const Arguments& arguments) {
  check_writable(arguments.json);
  const StateDict weights = read_weights({.path = arguments.checkpoint, .which = arguments.weights});
  write_weights(arguments.file, weights);
  const FurtherNames tied = further_names(weights);
  write_json(arguments.json, to_json(arguments, weights, tied));
  std::cout << "wrote " << count_text(weights, tied) << " ("
            << readable_bytes(static_cast<int64_t>(std::filesystem::file_size(arguments.file))) << ") to "
            << arguments.file << std::endl;
  return 0;
}

}  // namespace duet
