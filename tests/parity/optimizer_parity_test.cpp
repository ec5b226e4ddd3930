#include <cmath>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/rsub.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include "base/device.h"
#include "base/error.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "optim/optimizers/optimizer_kind.h"
#include "tests/support/expect_error.h"
#include "tests/support/over_tensors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// Every optimizer, with all of its numbers moving, gives the same bits in both modes, and a replay sees every new
// number.

namespace duet {
namespace {

using testing::expect_same_bits;
using testing::ToyTask;

enum class Clip { kOff, kNorm, kValue, kAdaptive };

// Lion, with two options that OptimizerOptions knows nothing of.
std::shared_ptr<const OptimizerKind> own_lion(double lr, std::array<double, 2> memory) {
  OptimizerKind kind{.name = "OwnLion"};
  kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>{{.name = "direction"}}; };
  kind.numbers = [lr, memory](const OptimizerOptions&) {
    return std::map<std::string, double>{{"lr", lr}, {"weight_decay", 0.1}, {"short", memory[0]}, {"long", memory[1]}};
  };
  kind.kernel = [](const KernelCall& call, const OptimizerOptions&) {
    using namespace kernel_math;
    decay_parameters(call);
    const Tensors& averages = call.state[0];
    const at::Tensor share = cast_like(at::rsub(number64(call, "short"), 1), averages);
    const Tensors directions = at::_foreach_lerp(averages, call.gradients, Tensors(averages.size(), share));
    at::_foreach_sign_(directions);
    add_scaled_(call.parameters, directions, -number64(call, "lr"));
    lerp_(averages, call.gradients, at::rsub(number64(call, "long"), 1));
  };
  return std::make_shared<const OptimizerKind>(kind);
}

OptimizerOptions own_options() { return own_lion(2e-3, {0.9, 0.99}); }

std::vector<OptimizerOptions> all_optimizers() {
  using testing::over_tensors;
  return {SGD{.lr = 0.02, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true},
          SGD{.lr = 0.02, .momentum = 0.9, .dampening = 0.3},
          Adam{.amsgrad = true},
          AdamW{.lr = 3e-3},
          Adagrad{.lr_decay = 0.01},
          RMSprop{.weight_decay = 0.01, .momentum = 0.5, .centered = true},
          NAdam{.weight_decay = 0.01, .decoupled_weight_decay = true},
          RAdam{.weight_decay = 0.01},
          Lion{.weight_decay = 0.1},
          Muon{},
          Adadelta{.weight_decay = 0.01},
          Adafactor{.weight_decay = 0.01},
          Adamax{.weight_decay = 0.01},
          ASGD{.weight_decay = 0.01, .lambd = 0.01, .t0 = 4},
          Rprop{},
          SparseAdam{},
          own_options(),
          over_tensors(SGD{.lr = 0.02, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true}),
          over_tensors(SGD{.lr = 0.02, .weight_decay = 0.01, .momentum = 0.9, .dampening = 0.3}),
          over_tensors(Adam{.weight_decay = 0.01, .amsgrad = true}),
          over_tensors(AdamW{.lr = 3e-3}),
          over_tensors(Adagrad{.weight_decay = 0.01, .lr_decay = 0.01})};
}

TrainerOptions options_of(const OptimizerOptions& optimizer, Clip clip, std::optional<at::ScalarType> amp) {
  TrainerOptions options;
  options.device = "cpu";
  options.optimizer = optimizer;
  if (clip == Clip::kNorm) options.clip_grad = ClipNorm{.max_norm = 0.5};
  if (clip == Clip::kValue) options.clip_grad = ClipValue{0.05};
  if (clip == Clip::kAdaptive) options.clip_grad = ClipAdaptive{.exclude = {"*.bias"}};
  options.log_grad_norm = clip == Clip::kAdaptive;
  options.amp = amp;
  if (amp == at::kHalf) options.loss_scale = LossScaleOptions{.growth_interval = 3};
  return options;
}

// Curves on everything that a schedule may drive.
void move_numbers(HyperParameters& numbers) {
  for (const char* name : {"lr", "weight_decay", "momentum", "beta1", "beta2"}) {
    if (!numbers.has(0, name)) continue;
    const double base = numbers.get(0, name);
    numbers.set_schedule(
        name, [base](std::size_t, int64_t applied) { return base * (1 - 0.02 * static_cast<double>(applied % 10)); });
  }
}

std::vector<Batch> four_samples_each(const ToyTask& task, int64_t accumulate, int64_t n) {
  std::vector<Batch> micro_batches;
  for (int64_t i = 0; i < accumulate; ++i) micro_batches.push_back(task.batch(4, static_cast<uint64_t>(100 * n + i)));
  return micro_batches;
}

StateDict trained(BaseTrainer& trainer, const ToyTask& task, int64_t accumulate) {
  move_numbers(trainer.hyper_parameters());
  for (int64_t n = 0; n < 9; ++n) trainer.step(four_samples_each(task, accumulate, n));
  return trainer.state_dict();
}

struct Step {
  int64_t accumulate;
  Clip clip;
};
using Parameters = std::tuple<std::size_t, Step>;

class OptimizerParity : public ::testing::TestWithParam<Parameters> {};

TEST_P(OptimizerParity, GraphGivesTheBitsOfEager) {
  const auto& [index, step] = GetParam();
  const auto& [accumulate, clip] = step;
  const ToyTask task = testing::cnn_task();
  // bfloat16 ends before the optimizer begins: once will do.
  const auto wide = accumulate == 1 ? std::optional<at::ScalarType>() : std::optional(at::kBFloat16);
  for (const std::optional<at::ScalarType> amp : {wide, std::optional(at::kHalf)}) {
    SCOPED_TRACE(amp ? c10::toString(*amp) : "full precision");
    const TrainerOptions options = options_of(all_optimizers().at(index), clip, amp);
    seed_all(7);
    EagerTrainer eager(task.make(), options);
    const StateDict expected = trained(eager, task, accumulate);

    seed_all(7);
    GraphOptions strict;
    strict.fallback = Fallback::kStrict;
    GraphTrainer graph(task.make(), options, strict);
    expect_same_bits(expected, trained(graph, task, accumulate));
    EXPECT_GE(graph.replays(), 6) << graph.program_text();
  }
}

std::string optimizer_and_step(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [index, step] = info.param;
  const auto& [accumulate, clip] = step;
  const char* const clips[] = {"Plain", "Norm", "Value", "Adaptive"};
  return all_optimizers().at(index).type() + std::to_string(index) + "x" + std::to_string(accumulate) +
         clips[static_cast<int>(clip)];
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerParity,
                         ::testing::Combine(::testing::Range<std::size_t>(0, all_optimizers().size()),
                                            ::testing::Values(Step{1, Clip::kOff}, Step{4, Clip::kNorm},
                                                              Step{1, Clip::kValue}, Step{1, Clip::kAdaptive})),
                         optimizer_and_step);

struct MixedWeights : torch::nn::Module {
  MixedWeights() {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      const at::Tensor weight = at::div(at::arange(1, 13, at::kFloat), 8).reshape({4, 3}).to(dtype);
      weights.push_back(register_parameter(c10::toString(dtype), weight));
    }
  }
  at::Tensor loss(const Batch& batch) const {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& weight : weights) {
      const at::Tensor wide = weight.to(at::kFloat);
      sum = sum + (wide * batch["slope"]).sum() + (wide * wide).sum();
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};

// The first step and a later one are skipped.
TEST(OptimizerParity, ParametersOfSeveralDtypesGetTheBitsOfEager) {
  for (const OptimizerOptions& optimizer : all_optimizers()) {
    if (optimizer.type() == "OwnLion") continue;  // takes one dtype
    SCOPED_TRACE(optimizer.type());
    TrainerOptions options = options_of(optimizer, Clip::kOff, {});
    options.non_finite = NonFinite::kSkip;
    std::vector<StateDict> states;
    for (const char* mode : {"eager", "graph"}) {
      const auto loss = [](MixedWeights& net, const Batch& batch) { return net.loss(batch); };
      auto trainer = testing::make_trainer(mode, make_task(std::make_shared<MixedWeights>(), loss), options);
      move_numbers(trainer->hyper_parameters());
      for (int64_t n = 0; n < 12; ++n) {
        const at::Tensor slope = at::div(at::sub(at::remainder(at::add(at::arange(12, at::kFloat), 5 * n), 7), 3), 4);
        trainer->step(Batch{{"slope", at::div(slope, n % 8 == 0 ? 0.0 : 1.0).reshape({4, 3})}});
      }
      EXPECT_EQ(trainer->hyper_parameters().applied(), 10);
      states.push_back(trainer->state_dict());
      const auto* graph = dynamic_cast<GraphTrainer*>(trainer.get());
      EXPECT_TRUE(graph == nullptr || graph->replays() >= 9);
    }
    expect_same_bits(states[0], states[1]);
  }
}

// A hook that sets a number now and then: no capture is made anew and none trains on an old value.
TEST(OptimizerParity, NumbersSetBetweenStepsTakeEffectInAReplay) {
  const ToyTask task = testing::mlp_task();
  for (const OptimizerOptions& optimizer : all_optimizers()) {
    SCOPED_TRACE(optimizer.type());
    // The weights after ten steps, where that number changes before the seventh one; empty: it has no such number.
    const auto trained_with = [&](const char* mode, const std::string& changed) -> StateDict {
      seed_all(7);
      auto trainer = testing::make_trainer(mode, task.make(), options_of(optimizer, Clip::kOff, {}));
      HyperParameters& numbers = trainer->hyper_parameters();
      if (!changed.empty() && !numbers.has(0, changed)) return {};
      for (int64_t n = 0; n < 10; ++n) {
        if (!changed.empty() && n == 6) numbers.set(0, changed, 0.5 * numbers.get(0, changed) + 0.003);
        trainer->step(four_samples_each(task, 1, n));
      }
      if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) EXPECT_EQ(graph->eager_steps(), 2) << changed;
      return trainer->weights();
    };
    const StateDict plain = trained_with("eager", "");
    expect_same_bits(plain, trained_with("graph", ""));
    for (const std::string name : {"lr", "weight_decay", "momentum", "beta1", "beta2", "eps"}) {
      const StateDict eager = trained_with("eager", name), graph = trained_with("graph", name);
      if (eager.tensors().empty() || optimizer.type() == "Rprop") continue;  // its lr counts in the first step alone
      if (optimizer.type() == "Muon" && name == "eps") continue;             // a floor of a norm
      expect_same_bits(eager, graph);
      bool differ = false;
      for (const auto& [key, tensor] : plain.tensors())
        differ = differ || !testing::same_bits(tensor, eager.tensor(key));
      EXPECT_TRUE(differ) << name << " had no effect";
    }
  }
}

// What a hook set against a schedule counts for the next step, also if the run is resumed before it.
TEST(OptimizerParity, ANumberSetBeforeASaveIsUsedAfterTheResume) {
  const ToyTask task = testing::mlp_task();
  const auto falling = [](std::size_t, int64_t applied) { return 0.1 / (1.0 + static_cast<double>(applied)); };
  for (const char* mode : {"eager", "graph"}) {
    std::vector<StateDict> states;
    for (const bool resumes : {false, true}) {
      seed_all(7);
      auto trainer = testing::make_trainer(mode, task.make(), options_of(AdamW{}, Clip::kOff, {}));
      trainer->hyper_parameters().set_schedule("lr", falling);
      for (int64_t n = 0; n < 5; ++n) trainer->step(four_samples_each(task, 1, n));
      trainer->hyper_parameters().set(0, "lr", 0.5);
      if (resumes) {
        const StateDict saved = trainer->state_dict();
        auto other = testing::make_trainer(mode, task.make(), options_of(AdamW{}, Clip::kOff, {}));
        other->load_state_dict(saved);
        other->hyper_parameters().set_schedule("lr", falling);
        trainer = std::move(other);
      }
      for (int64_t n = 5; n < 7; ++n) {
        trainer->step(four_samples_each(task, 1, n));
        EXPECT_EQ(trainer->hyper_parameters().get(0, "lr"), n == 5 ? 0.5 : 0.1 / 7);
      }
      states.push_back(trainer->state_dict());
    }
    expect_same_bits(states[0], states[1]);
  }
}

TEST(OptimizerParity, LbfgsIsRefusedInGraphAndWithClipping) {
  const ToyTask task = testing::mlp_task();
  TrainerOptions options = options_of(LBFGS{.max_iter = 5, .line_search_fn = "strong_wolfe"}, Clip::kOff, {});
  expect_error<ConfigError>([&] { GraphTrainer(task.make(), options); }, {"LBFGS", "line search", "mode: eager"});
  options.clip_grad = ClipNorm{};
  expect_error<ConfigError>([&] { EagerTrainer(task.make(), options); }, {"clip_grad", "LBFGS"});
}

TEST(OptimizerParity, SparseGradientsAreRefusedWhereDenseOnesAreNeeded) {
  const auto loss = [](torch::nn::EmbeddingImpl& table, const Batch& batch) {
    return table.forward(batch["word"]).square().mean();
  };
  for (const auto& [optimizer, clip] :
       {std::pair(OptimizerOptions(SparseAdam{}), Clip::kNorm), {AdamW{}, Clip::kOff}}) {
    const auto table = std::make_shared<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(20, 6).sparse(true));
    EagerTrainer trainer(make_task(table, loss), options_of(optimizer, clip, {}));
    expect_error<ConfigError>([&] { trainer.step(Batch{{"word", at::arange(8)}}); },
                              {"'weight'", "Sparse", "SparseAdam", "clip_grad"});
  }
}

TEST(OwnOptimizer, ItsStateIsSavedAndChecked) {
  const ToyTask task = testing::mlp_task();
  const TempDir folder;
  TrainerOptions options;
  options.optimizer = own_options();
  seed_all(3);
  const auto whole = testing::make_trainer("eager", task.make(), options);
  for (int64_t n = 0; n < 6; ++n) {
    whole->step(task.batch(4, static_cast<uint64_t>(n)));
    if (n == 2) whole->save(folder / "run");
  }
  const auto resumed = testing::make_trainer("graph", task.make(), options);
  resumed->load(folder / "run");
  for (int64_t n = 3; n < 6; ++n) resumed->step(task.batch(4, static_cast<uint64_t>(n)));
  expect_same_bits(whole->weights(), resumed->weights());

  options.optimizer = Lion{};
  const auto other = testing::make_trainer("eager", task.make(), options);
  expect_error<CheckpointError>([&] { other->load(folder / "run"); }, {"OwnLion with direction", "Lion with exp_avg"});
}

TEST(OwnOptimizer, MustSayWhatItIs) {
  OptimizerKind half{.name = "Half"};
  OptimizerOptions options = std::make_shared<const OptimizerKind>(half);
  expect_error<ConfigError>([&] { options.validate(); }, {"slots, numbers and kernel"});
  half = *own_lion(1, {0, 0});
  half.name = "";
  options = std::make_shared<const OptimizerKind>(half);
  expect_error<ConfigError>([&] { options.validate(); }, {"kind ''", "name, slots"});
  half.name = "Half";
  half.numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"rate", 1}}; };
  options = std::make_shared<const OptimizerKind>(half);
  expect_error<ConfigError>([&] { options.validate(); }, {"'Half' has no number lr"});
}

}  // namespace
}  // namespace duet
