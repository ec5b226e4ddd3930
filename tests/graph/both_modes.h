#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <torch/torch.h>
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// The same steps in eager and in graph mode: whatever graph mode makes of them, what remains must be the same bits.

namespace duet::testing {

using StepLoss = std::function<at::Tensor(TwoLayers&, const Batch&)>;
using PredictFn = std::function<NamedTensors(TwoLayers&, const Batch&)>;

// A task whose predictions are `predict`'s; null: none.
std::unique_ptr<Task> task_of(std::shared_ptr<TwoLayers> net, const StepLoss& loss, const PredictFn& predict,
                              const std::function<std::string()>& graph_key = nullptr);

// One run: the model, what its host code refers to, and what the test does between steps.
struct StepRun {
  std::shared_ptr<TwoLayers> net = std::make_shared<TwoLayers>();
  StepLoss loss = plain_loss;
  PredictFn predict = nullptr;  // before each step, on its batch; what it gives is seen
  std::function<void(BaseTrainer&, int64_t step)> between = nullptr;  // before each step
  // Of each micro-batch; it gets an "id", the number of its step.
  std::function<Batch(int64_t number)> batch = [](int64_t n) { return batch_at(n % 97); };
  std::function<std::string()> graph_key = nullptr;
  std::shared_ptr<std::vector<at::Tensor>> seen = std::make_shared<std::vector<at::Tensor>>();  // compared as well
  TrainerOptions options{.optimizer = SGD{.lr = 0.05, .momentum = 0.9}};
  GraphOptions graph{};
};

std::unique_ptr<GraphTrainer> graph_trainer(const StepLoss& loss, const GraphOptions& graph = {},
                                            TrainerOptions options = {});

using MakeRun = std::function<void(StepRun& run)>;

struct RunOutcome {
  StateDict state;
  std::vector<at::Tensor> seen;
  std::vector<double> losses;
  std::vector<SignatureReport> report;
  std::string program;  // the text of the captured step
  std::string names;    // of predictions
  std::string error;    // a GraphError, which ended the run

  std::string reasons() const;  // of all signatures, and the error
  int64_t captured() const;     // signatures
  int64_t total(int64_t SignatureReport::* count) const;
};

RunOutcome run_in(const std::string& mode, const MakeRun& set_up, int64_t steps);

// Runs in both modes and compares losses, state and what was seen, unless graph mode ended the run; returns its
// outcome.
RunOutcome expect_same_in_both_modes(const MakeRun& set_up, int64_t steps = 20);

}  // namespace duet::testing
