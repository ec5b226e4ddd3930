#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/hook.h"
#include "core/task.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// Several ranks train the weights of one process with the global batch, and both modes the same bits, whatever the
// model does with its layers.

namespace duet {
namespace {

using namespace testing;

using at::Tensor;

struct Layers : torch::nn::Module {
  torch::nn::Linear a{16, 12}, b{12, 12}, c{12, 5};
  Layers() {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
  }
  Tensor forward(const Tensor& x) { return c(torch::tanh(b(torch::tanh(a(x))))); }
};

// A layer whose backward computes its forward again and runs a backward of its own.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, torch::nn::Linear* layer) {
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    context->save_for_backward({x});
    const at::NoGradGuard no_grad;
    return torch::tanh((*layer)->forward(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* const layer = reinterpret_cast<torch::nn::Linear*>(context->saved_data["layer"].toInt());
    const at::AutoGradMode with_grad(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const Tensor y = torch::tanh((*layer)->forward(x));
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), Tensor()};
  }
};

// Autograd adds to the layer's gradient as often as its forward pass says, by the number of the pass.
template <int (*Times)(int64_t pass)>
struct CheckpointedTimes : Layers {
  int64_t passes = 0;
  Tensor forward(const Tensor& x) {
    Tensor y = torch::tanh(a(x));
    const int times = Times(passes++);
    for (int i = 0; i < times; ++i) y = Checkpointed::apply(y, &b);
    return c(y);
  }
};

int always_twice(int64_t) { return 2; }
int twice_from_second(int64_t pass) { return pass > 0 ? 2 : 0; }  // nothing is known of the layer before
int once_then_twice(int64_t pass) { return pass < 4 ? 1 : 2; }

// Asks its batch, which is another one on each rank: one rank replays what another one records or runs op by op.
struct Asking : Layers {
  Tensor forward(const Tensor& x) {
    const Tensor y = Layers::forward(x);
    return (x[0][0] > 0).item<bool>() ? y * 0.5 : y;
  }
};

struct AskingForANumber : Layers {
  Tensor forward(const Tensor& x) { return Layers::forward(x) * (1 + x[0][0].item<double>() / 10); }
};

struct Masked : Layers {
  Tensor mask = register_buffer("mask", torch::full({1, 1}, 0.5).expand({3, 5}));
  Tensor forward(const Tensor& x) { return Layers::forward(x) * mask[0]; }
};

// Tasks that weigh a batch by its labels; those of -100 are ignored.
template <class Module>
std::unique_ptr<Task> classifier() {
  return make_task(
      std::make_shared<Module>(),
      [](Module& module, const Batch& batch) {
        return torch::nn::functional::cross_entropy(module.forward(batch["input"]), batch["target"]);
      },
      [](const Batch& batch) { return static_cast<double>((batch["target"] != -100).sum().item<int64_t>()); });
}

NamedTensors usual_samples() { return mlp_task().batch(53, 5).items(); }

// With 4 ranks some have a micro-batch of two samples that are both ignored: a mean over nothing.
NamedTensors half_ignored() {
  NamedTensors samples = usual_samples();
  samples[1].second.masked_fill_(torch::arange(53) % 2 != 0, -100);
  return samples;
}

// One rank has the sample, all leave out its step.
NamedTensors one_not_finite() {
  NamedTensors samples = usual_samples();
  samples[0].second[41].fill_(std::nan(""));
  return samples;
}

// A step that was captured before comes back with the parameters that it was captured for.
void freeze_by_turns(BaseTrainer& trainer) {
  trainer.on(HookPoint::kBeforeTrainEpoch, [](TrainContext& context) {
    for (auto& [name, parameter] : context.task.named_parameters()) {
      if (name.starts_with("c.")) Tensor(parameter).requires_grad_(context.progress.epoch % 2 == 1);
    }
  });
}

void clamp_in_other_memory(BaseTrainer& trainer) {
  trainer.on(HookPoint::kAfterBackward, [](TrainContext& context) {
    for (const auto& [name, parameter] : context.task.named_parameters()) {
      parameter.mutable_grad().set_data(parameter.grad().clamp(-0.05, 0.05));
    }
  });
}

// As Module.to() of PyTorch does for another memory format: weights and gradients get other memory.
void transpose_in_the_second_epoch(BaseTrainer& trainer) {
  trainer.on(HookPoint::kBeforeTrainEpoch, [](TrainContext& context) {
    if (context.progress.epoch != 1) return;
    for (auto& [name, parameter] : context.task.named_parameters()) {
      if (parameter.dim() != 2) continue;
      for (Tensor tensor : {parameter, parameter.grad()}) tensor.set_data(tensor.detach().t().contiguous().t());
    }
  });
}

struct Training {
  std::string name;
  std::function<std::unique_ptr<Task>()> make = classifier<Layers>;
  std::function<NamedTensors()> samples = usual_samples;
  std::function<void(TrainerOptions&)> set = [](TrainerOptions&) {};
  void (*prepare)(BaseTrainer&) = [](BaseTrainer&) {};
  bool in_graph_mode = true;
  double tolerance = 1e-6;
  bool with_four = false;  // also on four ranks: the result depends on how many there are
};

NamedTensors train(const Training& training, const std::string& mode, int64_t accumulate, const Ranks& ranks) {
  seed_all(1);
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  options.loop = {.max_steps = 20, .accumulate = accumulate};
  options.distributed = {.communicator = ranks, .bucket_bytes = 1, .first_bucket_bytes = 1};  // one per parameter
  training.set(options);
  const auto trainer = make_trainer(mode, training.make(), options);
  training.prepare(*trainer);
  trainer->train(*share_of(training.samples(), 8, ranks.get()));
  NamedTensors result = weights_of(*trainer);
  result.emplace_back("the loss", trainer->result().loss);
  return result;
}

std::vector<RankResult> run(const Training& training, const std::string& mode, int64_t accumulate, int64_t world) {
  return run_ranks(world, [&](const Ranks& ranks) { return train(training, mode, accumulate, ranks); });
}

// Two ranks with windows of three micro-batches, and four with windows of one.
class DistributedParity : public ::testing::TestWithParam<int64_t> {
 protected:
  static int64_t accumulate() { return GetParam() == 2 ? 3 : 1; }
  static std::vector<RankResult> expect_same_bits_in_both_modes(const Training& training) {
    auto eager = run(training, "eager", accumulate(), GetParam());
    expect_same_on_all(eager);
    if (!training.in_graph_mode) return eager;
    const auto graph = run(training, "graph", accumulate(), GetParam());
    expect_same_on_all(graph);
    if (HasFailure()) return eager;
    for (const auto& [name, tensor] : eager[0].tensors) EXPECT_TRUE(same_bits(tensor, graph[0].at(name))) << name;
    return eager;
  }
};

TEST_P(DistributedParity, WeightsAreThoseOfOneProcessWithTheGlobalBatch) {
  const std::vector<Training> trainings = {
      {.name = "usual", .with_four = true},
      {.name = "frozen and unused parameters",
       .make = partial_task().make,
       .samples = [] { return partial_task().batch(106, 7).items(); },
       .with_four = true},
      {.name = "steps that are skipped",
       .samples = one_not_finite,
       .set = [](TrainerOptions& options) { options.non_finite = NonFinite::kSkip; },
       .with_four = true},
      {.name = "a line search, which sums the gradients of every trial",
       .set =
           [](TrainerOptions& options) {
             options.optimizer = LBFGS{.max_iter = 5, .line_search_fn = "strong_wolfe"};
             options.loop.max_steps = 3;
           },
       .in_graph_mode = false,
       .tolerance = 1e-4},
      {.name = "a layer is checkpointed twice", .make = classifier<CheckpointedTimes<always_twice>>},
      {.name = "a layer is checkpointed twice from the second pass on",
       .make = classifier<CheckpointedTimes<twice_from_second>>,
       .set = [](TrainerOptions& options) { options.distributed.find_unused_parameters = true; },
       .with_four = true},
      {.name = "a buffer is expanded", .make = classifier<Masked>},
      {.name = "a layer is frozen by turns", .prepare = freeze_by_turns},
      {.name = "gradients get other memory", .prepare = clamp_in_other_memory},
      {.name = "weights are laid out otherwise", .prepare = transpose_in_the_second_epoch},
      {.name = "labels are ignored", .samples = half_ignored, .with_four = true},
      {.name = "fewer samples than ranks, from the first step on",
       .samples = [] { return mlp_task().batch(3, 5).items(); },
       .with_four = true},
  };
  for (const Training& training : trainings) {
    if (GetParam() == 4 && !training.with_four) continue;
    SCOPED_TRACE(training.name);
    const auto many = expect_same_bits_in_both_modes(training);
    const auto one = run(training, "eager", accumulate(), 1);
    expect_no_error(one);
    if (HasFailure()) return;
    for (const auto& [name, tensor] : one[0].tensors) {
      EXPECT_TRUE(name == "the loss" || tensor.isfinite().all().item<bool>()) << name;
    }
    EXPECT_LE(largest_difference(one[0], many[0]), training.tolerance);
  }
}

TEST_P(DistributedParity, ModesGiveTheSameBits) {
  std::vector<Training> trainings = {{.name = "asks its batch", .make = classifier<Asking>},
                                     {.name = "asks for a number", .make = classifier<AskingForANumber>}};
  for (const ToyTask& task : all_toy_tasks()) {
    if (GetParam() == 4) break;  // parity_test.cpp has them with one micro-batch a step
    trainings.push_back({.name = task.name,
                         .make = task.make,
                         .samples = [&task] { return task.batch(106, 7).items(); },
                         .set =
                             [](TrainerOptions& options) {
                               options.optimizer = AdamW{.lr = 1e-2};
                               options.clip_grad = ClipNorm{.max_norm = 0.5};
                             }});
  }
  for (const Training& training : trainings) {
    SCOPED_TRACE(training.name);
    expect_same_bits_in_both_modes(training);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DistributedParity, ::testing::Values(2, 4));

class DistributedModels : public InBothModes {};

// The first addition was sent to the other ranks before the second came.
TEST_P(DistributedModels, ALayerIsCheckpointedMoreOftenThanEverBefore) {
  expect_error_on_all(run({.name = "", .make = classifier<CheckpointedTimes<once_then_twice>>}, mode(), 1, 2), 2,
                      "added to the gradient of 'b.bias' 2 times in one backward on rank ");
}

struct Counter : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({1}));
  Tensor count = register_buffer("count", torch::zeros({1}));
};

// Rank r adds r + 1 in each of five steps.
TEST_P(DistributedModels, BuffersAreThoseOfRankZeroAlsoWhereCodeReplacesThem) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    const auto model = std::make_shared<Counter>();
    const auto rank = static_cast<double>(ranks->rank());
    const auto loss = [rank](Counter& counter, const Batch& batch) {
      counter.count.add_(rank + 1);
      return (batch["x"] * counter.weight).mean();
    };
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.1};
    options.distributed.communicator = ranks;
    const auto trainer = make_trainer(mode(), make_task(model, loss), options);
    for (int step = 0; step < 5; ++step) {
      trainer->step(Batch{{"x", torch::ones({2})}});
      if (step == 1) model->count.set_data(torch::full({1}, 10 + rank));
      if (step == 2) model->register_buffer("late", torch::full({2}, 20 + rank));
    }
    trainer->finish();
    return weights_of(*trainer);
  });
  expect_same_on_all(results);
  EXPECT_EQ(results[1].at("count").item<float>(), 13);
  EXPECT_EQ(results[1].at("late").sum().item<float>(), 40);
}

DUET_IN_BOTH_MODES(DistributedModels);

}  // namespace
}  // namespace duet
