#include "tests/graph/both_modes.h"
#include <algorithm>
#include <iostream>
#include <gtest/gtest.h>
#include "base/error.h"

namespace duet::testing {

std::unique_ptr<GraphTrainer> graph_trainer(const StepLoss& loss, const GraphOptions& graph, TrainerOptions options) {
  seed_all(3);
  options.device = "cpu";
  return std::make_unique<GraphTrainer>(make_task(std::make_shared<TwoLayers>(), loss), options, graph);
}

namespace {

class Predictor : public ModuleTask<TwoLayers> {
 public:
  Predictor(std::shared_ptr<TwoLayers> net, const StepLoss& loss, PredictFn predict)
      : ModuleTask(
            std::move(net), nullptr,
            [loss](TwoLayers& own, const at::Tensor&, const Batch& batch) { return to_step_output(loss(own, batch)); }),
        predict_(std::move(predict)) {}
  NamedTensors predict(const Batch& batch) override { return predict_(module(), batch); }

 private:
  PredictFn predict_;
};

}  // namespace

std::unique_ptr<Task> task_of(std::shared_ptr<TwoLayers> net, const StepLoss& loss, const PredictFn& predict,
                              const std::function<std::string()>& graph_key) {
  if (!predict) return make_task(std::move(net), loss, graph_key);
  return std::make_unique<Predictor>(std::move(net), loss, predict);
}

std::string RunOutcome::reasons() const {
  std::string all = error;
  for (const SignatureReport& each : report) all += each.reason;
  return all;
}

int64_t RunOutcome::captured() const {
  return std::ranges::count(report, std::string("captured"), &SignatureReport::state);
}

int64_t RunOutcome::total(int64_t SignatureReport::* count) const {
  int64_t sum = 0;
  for (const SignatureReport& each : report) sum += each.*count;
  return sum;
}

RunOutcome run_in(const std::string& mode, const MakeRun& set_up, int64_t steps) {
  seed_all(5);
  StepRun run;
  set_up(run);
  const auto trainer =
      make_trainer(mode, task_of(run.net, run.loss, run.predict, run.graph_key), run.options, run.graph);
  RunOutcome outcome;
  try {
    for (int64_t n = 0; n < steps; ++n) {
      if (run.between) run.between(*trainer, n);
      std::vector<Batch> micro_batches;
      const int64_t accumulate = run.options.loop.accumulate;
      for (int64_t i = 0; i < accumulate; ++i) {
        micro_batches.push_back(run.batch(n * accumulate + i));
        micro_batches.back().set("id", at::full({8}, n, at::kLong));
      }
      if (run.predict) {
        for (const auto& [name, tensor] : trainer->predict(micro_batches.front()).items()) {
          run.seen->push_back(tensor);
          outcome.names += name + " ";
        }
      }
      outcome.losses.push_back(trainer->step(micro_batches).loss.item<double>());
    }
    trainer->finish();
  } catch (const GraphError& error) {
    outcome.error = error.what();
  }
  const StateDict state = trainer->state_dict();
  for (const auto& [name, tensor] : state.tensors()) outcome.state.set(name, tensor.clone());
  outcome.seen = *run.seen;
  if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) {
    outcome.report = graph->report();
    outcome.program = graph->program_text();
  }
  return outcome;
}

RunOutcome expect_same_in_both_modes(const MakeRun& set_up, int64_t steps) {
  const RunOutcome eager = run_in("eager", set_up, steps);
  EXPECT_EQ(eager.error, "");
  RunOutcome graph = run_in("graph", set_up, steps);
  for (const SignatureReport& report : graph.report) {
    std::cout << "  " << report.kind << " " << report.signature << ": " << report.state << ", " << report.replays
              << " replays, " << report.checked << " checked, " << report.differing << " differing, "
              << report.eager_steps << " eager; " << report.reason << "\n";
  }
  if (!graph.error.empty()) return graph;
  EXPECT_EQ(eager.losses, graph.losses);
  EXPECT_EQ(eager.names, graph.names);
  expect_same_bits(eager.state, graph.state);
  EXPECT_EQ(eager.seen.size(), graph.seen.size());
  for (std::size_t i = 0; i < std::min(eager.seen.size(), graph.seen.size()); ++i) {
    EXPECT_TRUE(same_bits(eager.seen[i], graph.seen[i])) << "what the user saw, number " << i;
  }
  return graph;
}

}  // namespace duet::testing
