#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_runs.h"

// An Embedding with sparse gradients: SparseAdam trains it, graph mode op by op.

namespace duet {
namespace {

struct TableAndLinear : torch::nn::Module {
  torch::nn::Embedding table{torch::nn::EmbeddingOptions(20, 6).sparse(true)};
  torch::nn::Linear linear{6, 3};
  TableAndLinear() {
    register_module("table", table);
    register_module("linear", linear);
  }
};

std::unique_ptr<Task> table_task() {
  return make_task(std::make_shared<TableAndLinear>(), [](TableAndLinear& net, const Batch& batch) {
    return torch::nn::functional::cross_entropy(net.linear(net.table(batch["word"])), batch["target"]);
  });
}

Batch words(int64_t n) {
  const at::Tensor word = (torch::arange(8) * 7 + n) % 20;
  return {{"word", word}, {"target", word % 3}};
}

std::unique_ptr<BaseTrainer> table_trainer(const std::string& mode, const TrainerOptions& options,
                                           const GraphOptions& graph = {}) {
  seed_all(7);
  return testing::make_trainer(mode, table_task(), options, graph);
}

const TrainerOptions& with_sparse_adam() {
  static const TrainerOptions options{.optimizer = SparseAdam{.lr = 0.01}};
  return options;
}

TEST(SparseGradients, TrainInBothModesAlike) {
  StateDict states[2];
  for (const bool graph : {false, true}) {
    const auto trainer = table_trainer(graph ? "graph" : "eager", with_sparse_adam());
    const at::Tensor before = trainer->weights().tensor("table.weight").clone();
    for (int64_t n = 0; n < 6; ++n) trainer->step(words(n % 3));
    for (int64_t n = 0; n < 3; ++n) trainer->step({words(n), words(n + 5)});
    EXPECT_FALSE(at::equal(before, trainer->weights().tensor("table.weight")));
    states[graph] = trainer->state_dict();
    const auto* graph_trainer = dynamic_cast<GraphTrainer*>(trainer.get());
    if (graph_trainer == nullptr) continue;
    EXPECT_EQ(graph_trainer->replays(), 0);
    EXPECT_EQ(graph_trainer->report().front().state, "eager");
    EXPECT_NE(graph_trainer->report().front().reason.find("parse"), std::string::npos)
        << graph_trainer->report().front().reason;
  }
  testing::expect_same_bits(states[0], states[1]);
}

TEST(SparseGradients, AreRefusedWithTheWayOutWhereDenseOnesAreNeeded) {
  TrainerOptions clipped = with_sparse_adam();
  clipped.clip_grad = ClipNorm{};
  for (const TrainerOptions& options : {clipped, TrainerOptions{.optimizer = AdamW{}}}) {
    const auto trainer = table_trainer("eager", options);
    expect_error<ConfigError>([&] { trainer->step(words(0)); },
                              {"'table.weight'", "Sparse", "SparseAdam", "clip_grad"});
  }
}

}  // namespace
}  // namespace duet
