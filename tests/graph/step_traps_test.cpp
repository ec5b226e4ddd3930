#include <optional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/task.h"
#include "tests/support/expect_error.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// Steps that look like any other and would be replayed wrongly. In both modes the state must be the same.

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using ::testing::HasSubstr;

// State after 20 steps in `mode`, with the report of graph mode.
struct Outcome {
  StateDict state;
  std::vector<SignatureReport> report;
};

Outcome run_steps(const std::string& mode, const std::function<std::unique_ptr<Task>()>& make,
                  const std::function<void(BaseTrainer&, int64_t)>& before = nullptr) {
  seed_all(5);
  const auto trainer = testing::make_trainer(mode, make());
  for (int64_t n = 0; n < 20; ++n) {
    if (before) before(*trainer, n);
    trainer->step(batch_at(n));
  }
  Outcome result{trainer->state_dict(), {}};
  if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) result.report = graph->report();
  return result;
}

// A scripted module as its own task: forward gives the loss.
std::unique_ptr<Task> scripted(const std::string& body) {
  auto module = std::make_shared<torch::jit::Module>("Net");
  module->register_parameter("weight", torch::randn({16, 5}, torch::requires_grad()), false);
  module->register_buffer("seen", torch::zeros({5}));
  module->define("def forward(self, x, target):\n" + body);
  class ScriptedLoss : public Task {
   public:
    explicit ScriptedLoss(std::shared_ptr<torch::jit::Module> module) : module_(std::move(module)) {}
    NamedTensors named_parameters() const override { return {{"weight", module_->attr("weight").toTensor()}}; }
    NamedTensors named_buffers() const override { return {{"seen", module_->attr("seen").toTensor()}}; }
    void train(bool) override {}
    void to(at::Device) override {}
    StepOutput training_step(const Batch& batch) override {
      return {module_->forward({batch["input"], batch["target"]}).toTensor(), {}};
    }

   private:
    std::shared_ptr<torch::jit::Module> module_;
  };
  return std::make_unique<ScriptedLoss>(module);
}

TEST(StepTraps, TensorIndicesOfAScriptAreInputsNotConstants) {
  const auto make = [] {
    return scripted(
        "  y = x.matmul(self.weight)\n"
        "  return y[target].mul(y).mean() + y[:, target[0:2]].mean()\n");
  };
  const Outcome eager = run_steps("eager", make);
  const Outcome graph = run_steps("graph", make);
  expect_same_bits(eager.state, graph.state);
  EXPECT_EQ(graph.report[0].state, "captured") << graph.report[0].reason;
}

TEST(StepTraps, ABufferThatIsReplacedRunsEager) {
  const auto make = [] {
    return scripted(
        "  y = x.matmul(self.weight)\n"
        "  self.seen = self.seen * 0.9 + y.detach().mean(0) * 0.1\n"
        "  return y.square().mean()\n");
  };
  const Outcome eager = run_steps("eager", make);
  const Outcome graph = run_steps("graph", make);
  expect_same_bits(eager.state, graph.state);
  EXPECT_THAT(graph.report[0].reason, HasSubstr("'seen' is replaced"));
}

TEST(StepTraps, AScriptThatAsksItsBatchIsCapturedForEachAnswer) {
  const auto make = [] {
    return scripted(
        "  y = x.matmul(self.weight)\n"
        "  if bool((x[:, 0] > -1.0).all()):\n"
        "    y = torch.tanh(y)\n"
        "  for i in range(int(target[0])):\n"
        "    y = y + 0.5\n"
        "  return y.square().mean()\n");
  };
  const Outcome eager = run_steps("eager", make);
  const Outcome graph = run_steps("graph", make);
  expect_same_bits(eager.state, graph.state);
  int64_t replays = 0;
  for (const SignatureReport& report : graph.report) {
    EXPECT_EQ(report.reason, "");
    replays += report.replays;
  }
  EXPECT_GT(replays, 0);
}

struct TwoHeads : torch::nn::Module {
  torch::nn::Linear body{16, 8}, left{8, 5}, right{8, 5};
  TwoHeads() {
    register_module("body", body);
    register_module("left", left);
    register_module("right", right);
  }
};

TEST(StepTraps, BranchesThatTakeTurnsAreCapturedEach) {
  class Turns : public ModuleTask<TwoHeads> {
   public:
    using ModuleTask<TwoHeads>::ModuleTask;
    StepOutput training_step(const Batch& batch) override {
      torch::nn::Linear& head = use_left ? module().left : module().right;
      return {torch::nn::functional::cross_entropy(head(torch::tanh(module().body(batch["input"]))), batch["target"]),
              {}};
    }
    std::string graph_key() const override { return use_left ? "left" : "right"; }
    bool use_left = true;
  };
  Turns* task = nullptr;
  const auto make = [&task]() -> std::unique_ptr<Task> {
    auto made = std::make_unique<Turns>(std::make_shared<TwoHeads>(), nullptr, nullptr);
    task = made.get();
    return made;
  };
  const auto take_turns = [&task](BaseTrainer&, int64_t n) { task->use_left = n % 2 == 0; };
  const Outcome eager = run_steps("eager", make, take_turns);
  const Outcome graph = run_steps("graph", make, take_turns);
  expect_same_bits(eager.state, graph.state);
  int64_t replays = 0;
  for (const SignatureReport& report : graph.report) replays += report.replays;
  EXPECT_GE(replays, 10);
}

TEST(StepTraps, ModuleIsBackInTrainModeAfterAPass) {
  class Once : public DataSource {
   public:
    void start_epoch(int64_t) override { given_ = false; }
    std::optional<Batch> next() override {
      if (given_) return std::nullopt;
      given_ = true;
      return batch_at(99);
    }
    int64_t batches_per_epoch() const override { return 1; }

   private:
    bool given_ = false;
  };
  const auto validate = [](BaseTrainer& trainer, int64_t n) {
    Once data;
    if (n % 5 == 4) trainer.validate(data);
  };
  const auto make = [] { return testing::mlp_task().make(); };  // has dropout
  const Outcome with = run_steps("eager", make, validate);
  expect_same_bits(with.state, run_steps("eager", make).state);
  expect_same_bits(with.state, run_steps("graph", make, validate).state);
}

TEST(StepTraps, AKeptLossDoesNotChangeWithTheNextStep) {
  std::vector<double> losses[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(5);
    const auto trainer = testing::make_trainer(mode, testing::mlp_task().make());
    std::vector<at::Tensor> kept;
    for (int64_t n = 0; n < 10; ++n) kept.push_back(trainer->step(batch_at(n)).loss);
    for (const at::Tensor& loss : kept) losses[mode == "graph"].push_back(loss.item<double>());
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(StepTraps, AnIndexOutOfRangeIsToldThoughNobodyReadsTheResult) {
  for (const std::string mode : {"eager", "graph"}) {
    const auto loss = [](testing::TwoLayers& net, const Batch& batch) {
      batch["input"].gather(1, batch["label"].unsqueeze(1));
      return testing::plain_loss(net, batch);
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<testing::TwoLayers>(), loss));
    const auto step = [&trainer](int64_t n, int64_t label) {
      Batch batch = batch_at(n);
      batch.set("label", torch::full({8}, label, torch::kLong));
      trainer->step(batch);
    };
    for (int64_t n = 0; n < 5; ++n) step(n, n);
    expect_error<DataError>([&] { step(5, 99); }, {"train step 5: gather failed", "index 99 is out of bounds"});
  }
}

TEST(StepTraps, PackedSequencesRunEagerWithTheReason) {
  struct Packed : torch::nn::Module {
    torch::nn::GRU gru{torch::nn::GRUOptions(2, 5).batch_first(true)};
    Packed() { register_module("gru", gru); }
  };
  const auto make = []() -> std::unique_ptr<Task> {
    return make_task(std::make_shared<Packed>(), [](Packed& net, const Batch& batch) {
      const at::Tensor lengths = batch["target"] + 1;
      const auto packed =
          torch::nn::utils::rnn::pack_padded_sequence(batch["input"].view({-1, 8, 2}), lengths, true, false);
      return std::get<1>(net.gru->forward_with_packed_input(packed)).square().mean();
    });
  };
  const Outcome eager = run_steps("eager", make);
  const Outcome graph = run_steps("graph", make);
  expect_same_bits(eager.state, graph.state);
  EXPECT_EQ(graph.report[0].state, "eager");
}

TEST(StepTraps, ABatchThatIsNoPlainMemoryRunsEagerWithTheReason) {
  const auto run = [](const std::string& mode, const at::Tensor& odd, bool sparse) {
    seed_all(5);
    const auto loss = [sparse](testing::TwoLayers& net, const Batch& batch) {
      const at::Tensor input = sparse ? batch["odd"].to_dense() : at::real(batch["odd"] * batch["odd"]);
      return torch::nn::functional::cross_entropy(net.forward(input), batch["target"]);
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<testing::TwoLayers>(), loss));
    for (int64_t n = 0; n < 6; ++n) trainer->step({{"odd", odd}, {"target", batch_at(n)["target"]}});
    if (mode == "graph") {
      EXPECT_THAT(dynamic_cast<GraphTrainer&>(*trainer).report()[0].reason, HasSubstr("the batch's 'odd'"));
    }
    return trainer->state_dict();
  };
  const at::Tensor waves = torch::complex(torch::ones({8, 16}), torch::arange(16) * torch::ones({8, 1}) * 0.1).conj();
  const at::Tensor sparse = torch::eye(8, 16).to_sparse();
  expect_same_bits(run("eager", waves, false), run("graph", waves, false));
  expect_same_bits(run("eager", sparse, true), run("graph", sparse, true));
}

TEST(StepTraps, AnOpThatCallsOpsIsReplayedUnderTheAutocastThatItRanUnder) {
  std::optional<StateDict> eager;
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(5);
    TrainerOptions options;
    options.amp = at::kBFloat16;
    const auto task = [] {
      return make_task(std::make_shared<testing::TwoLayers>(), [](testing::TwoLayers& net, const Batch& batch) {
        const at::Tensor inverse = at::linalg_pinv(batch["input"].narrow(1, 0, 8) + 2 * torch::eye(8), 1e-6);
        return testing::plain_loss(net, batch) + net.a(batch["input"]).matmul(inverse).tanh().square().mean();
      });
    };
    const auto trainer = testing::make_trainer(mode, task(), options, {.check = Check::kOff, .verify_interval = 0});
    for (int64_t n = 0; n < 10; ++n) trainer->step(batch_at(n));
    if (!eager) {
      eager.emplace();
      const StateDict state = trainer->state_dict();
      for (const auto& [name, tensor] : state.tensors()) eager->set(name, tensor.clone());
    } else {
      expect_same_bits(*eager, trainer->state_dict());
      EXPECT_EQ(dynamic_cast<GraphTrainer&>(*trainer).report()[0].state, "captured");
    }
  }
}

TEST(StepTraps, ABatchThatRequiresAGradientIsRefusedInBothModes) {
  for (const std::string mode : {"eager", "graph"}) {
    const auto trainer = testing::make_trainer(mode, testing::mlp_task().make());
    Batch batch = batch_at(0);
    batch.set("input", batch["input"].clone().requires_grad_(true));
    EXPECT_THROW(trainer->step(batch), DataError);
  }
}

}  // namespace
}  // namespace duet
