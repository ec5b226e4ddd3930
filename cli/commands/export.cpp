#include <c10/util/StringUtil.h>
#include <duet/cli/commands/commands.h>
#include <duet/cli/report.h>
#include <duet/core/weights_file.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <iostream>

namespace duet {

namespace {

nlohmann::ordered_json to_json(const ExportArguments& arguments, const StateDict& weights) {
  nlohmann::ordered_json json;
  json["checkpoint"] = arguments.checkpoint;
  json["weights"] = arguments.weights;
  json["file"] = arguments.file;
  json["bytes"] = std::filesystem::file_size(arguments.file);
  json["tensors"] = nlohmann::ordered_json::array();
  for (const auto& [name, tensor] : weights.tensors()) {
    json["tensors"].push_back(
        {{"name", name}, {"dtype", c10::str(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}});
  }
  return json;
}

}  // namespace

int export_command(const ExportArguments& arguments) {
  check_writable(arguments.json);
  const StateDict weights = read_weights({.path = arguments.checkpoint, .which = arguments.weights});
  write_weights(arguments.file, weights);
  write_json(arguments.json, to_json(arguments, weights));
  std::cout << "wrote " << weights.tensors().size() << " tensors ("
            << readable_bytes(static_cast<int64_t>(std::filesystem::file_size(arguments.file))) << ") to "
            << arguments.file << std::endl;
  return 0;
}

}  // namespace duet
