// Trains models that python/export_models.py exported, and compares each with what PyTorch's own loop gave:
//
//   exported_models FOLDER [--only TEXT]
//
// A line per model: whether its step was captured or why not, and whether every loss and every tensor at the end has
// PyTorch's bits, in both modes. Ends with 1 if one has not.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Parallel.h>
#include "base/detail/bits.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "core/model_file.h"
#include "core/trainer.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "optim/optimizers/optimizer_options.h"
#include "tests/support/exported_reference.h"

namespace {

using namespace duet;

// "every bit", or what differs first.
std::string difference(const ExportedReference& reference, Mode mode, std::string& capture) {
  auto task = make_exported_task(reference.options());
  NamedTensors model = task->named_parameters();
  for (const auto& buffer : task->named_buffers()) model.push_back(buffer);
  const TrainerOptions options{.optimizer = AdamW{.lr = reference.run["lr"]}};
  const auto trainer = make_trainer(mode, std::move(task), options);
  seed_all(reference.run["seed"].get<uint64_t>());
  std::optional<std::string> differs;
  for (std::size_t step = 0; step < reference.batches.size(); ++step) {
    const float loss = trainer->step(reference.batches[step]).loss.item<float>();
    if (!differs && std::memcmp(&loss, &reference.losses[step], sizeof loss) != 0) {
      differs = "loss of step " + std::to_string(step) + ": " + std::to_string(loss) + ", PyTorch " +
                std::to_string(reference.losses[step]);
    }
  }
  if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) {
    capture = "captured";
    for (const auto& report : graph->report()) {
      if (!report.reason.empty()) capture = "eager: " + report.reason;
    }
  }
  for (const auto& [name, tensor] : model) {
    const auto found = reference.weights.tensors().find(name);
    if (found == reference.weights.tensors().end()) continue;
    if (!differs && !same_bits(tensor, found->second)) differs = name;
  }
  trainer->finish();
  return differs.value_or("every bit");
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: exported_models FOLDER [--only TEXT]\n";
    return 2;
  }
  const std::string only = count == 4 ? arguments[3] : "";
  at::set_num_threads(1);
  int failures = 0;
  std::cout << "| model | eager | graph | step |\n|---|---|---|---|\n";
  std::vector<std::filesystem::path> folders(std::filesystem::directory_iterator(arguments[1]), {});
  std::sort(folders.begin(), folders.end());
  for (const auto& folder : folders) {
    const std::string name = folder.filename();
    if (!std::filesystem::exists(folder / "run.json") || name.find(only) == std::string::npos) continue;
    std::string eager, graph, capture;
    try {
      const ExportedReference reference(folder);
      eager = difference(reference, Mode::kEager, capture);
      graph = difference(reference, Mode::kGraph, capture);
    } catch (const Error& error) {
      (eager.empty() ? eager : graph) = error.what();
    }
    failures += eager != "every bit" || graph != "every bit" ? 1 : 0;
    std::cout << "| " << name << " | " << eager << " | " << graph << " | " << capture << " |" << std::endl;
  }
  std::cout << failures << " differ\n";
  return failures > 0 ? 1 : 0;
}
