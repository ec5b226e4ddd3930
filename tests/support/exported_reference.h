#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>
#include "base/batch.h"
#include "base/state_dict.h"
#include "checkpoint/weights_file.h"
#include "core/model_file.h"

namespace duet {

// A model that Python exported, with its batches and what PyTorch's own loop made of it: the files of
// tests/exported/make_exported_models.py and benchmarks/python/export_models.py.
struct ExportedReference {
  explicit ExportedReference(const std::filesystem::path& folder)
      : path(folder / "model.pt2"),
        run(nlohmann::json::parse(std::ifstream(folder / "run.json"))),
        weights(read_weights({.path = folder / "weights.pt"})) {
    const StateDict data = read_weights({.path = folder / "data.pt"});
    std::vector<std::string> items = run["inputs"];
    items.emplace_back("target");
    for (std::size_t step = 0; step < run["steps"].get<std::size_t>(); ++step) {
      Batch batch;
      for (const std::string& item : items) {
        const auto found = data.tensors().find(std::to_string(step) + "." + item);
        if (found != data.tensors().end()) batch.set(item, found->second);
      }
      batches.push_back(std::move(batch));
      losses.push_back(std::strtof(run["losses"][step].get<std::string>().c_str(), nullptr));
    }
  }

  ExportedTaskOptions options() const { return {.path = path, .inputs = run["inputs"], .loss = {.loss = run["loss"]}}; }

  std::string path;
  nlohmann::json run;
  StateDict weights;  // after the last step
  std::vector<Batch> batches;
  std::vector<float> losses;
};

}  // namespace duet
