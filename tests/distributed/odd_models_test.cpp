#include <algorithm>
#include <functional>
#include <string>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/hook.h"
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// Models that use a layer in unusual ways give the weights of one process, in either mode; what would let the ranks'
// models drift apart is an error on all of them.

namespace duet {
namespace {

using namespace testing;

using at::Tensor;
using Ranks = std::shared_ptr<Communicator>;

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

struct CheckpointedTwice : Layers {
  Tensor forward(const Tensor& x) {
    Tensor y = torch::tanh(a(x));
    for (int i = 0; i < 2; ++i) y = Checkpointed::apply(y, &b);
    return c(y);
  }
};

// The first forward pass leaves the layer out, so nothing is known of it before the second.
struct CheckpointedLater : CheckpointedTwice {
  int64_t calls = 0;
  Tensor forward(const Tensor& x) { return calls++ > 0 ? CheckpointedTwice::forward(x) : c(torch::tanh(a(x))); }
};

// Autograd adds to the layer's gradient once, and from the fifth pass on twice.
struct CheckpointedMoreLater : CheckpointedTwice {
  int64_t calls = 0;
  Tensor forward(const Tensor& x) {
    return calls++ < 4 ? c(Checkpointed::apply(torch::tanh(a(x)), &b)) : CheckpointedTwice::forward(x);
  }
};

// Asks its batch, which is another one on each rank.
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

NamedTensors classified(int64_t samples) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  return {{"x", torch::randn({samples, 16}, generator)}, {"t", torch::randint(5, {samples}, generator, torch::kInt64)}};
}

Batch batch_of(const NamedTensors& samples) {
  Batch batch;
  for (const auto& [name, tensor] : samples) batch.set(name, tensor);
  return batch;
}

template <class Module>
std::unique_ptr<Task> classifier() {
  return make_task(std::make_shared<Module>(), [](Module& module, const Batch& batch) {
    return torch::nn::functional::cross_entropy(module.forward(batch["x"]), batch["t"]);
  });
}

struct Training {
  std::function<std::unique_ptr<Task>()> make = classifier<Layers>;
  NamedTensors samples = {};
  std::function<void(BaseTrainer&)> prepare = [](BaseTrainer&) {};
  std::string mode = "eager";
  int64_t accumulate = 1;
  bool find_unused = false;
};

NamedTensors train(const Training& training, const Ranks& ranks) {
  seed_all(1);
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  options.loop = {.max_steps = 40, .accumulate = training.accumulate};
  options.distributed = {.communicator = ranks, .bucket_bytes = 1, .first_bucket_bytes = 1};  // one per parameter
  options.distributed.find_unused_parameters = training.find_unused;
  const auto trainer = make_trainer(training.mode, training.make(), options);
  training.prepare(*trainer);
  NamedTensors samples = training.samples;
  if (samples.empty()) samples = classified(53);
  trainer->train(*share_of(samples, 8, ranks.get()));
  NamedTensors result = weights_of(*trainer);
  result.emplace_back("the loss", trainer->result().loss);
  return result;
}

void expect_weights_of_one_process(Training training) {
  for (const auto& [world, accumulate] : {std::pair<int64_t, int64_t>{2, 3}, {4, 1}}) {
    training.accumulate = accumulate;
    const auto run = [&](int64_t count, const char* mode) {
      training.mode = mode;
      return run_ranks(count, [&](const Ranks& ranks) { return train(training, ranks); });
    };
    const auto one = run(1, "eager"), eager = run(world, "eager"), graph = run(world, "graph");
    expect_no_error(one);
    expect_same_on_all(eager);
    expect_same_on_all(graph);
    if (::testing::Test::HasFailure()) FAIL() << world << " ranks, accumulate " << accumulate;
    EXPECT_LE(largest_difference(one[0], eager[0]), 1e-6) << world << " ranks, accumulate " << accumulate;
    for (const auto& [name, tensor] : eager[0].tensors) EXPECT_TRUE(same_bits(tensor, graph[0].at(name))) << name;
  }
}

// Its gradient is complete when autograd has added to it twice.
TEST(DistributedOddModels, ALayerIsCheckpointedTwice) {
  expect_weights_of_one_process({.make = classifier<CheckpointedTwice>});
}

TEST(DistributedOddModels, ALayerIsCheckpointedTwiceFromTheSecondPassOn) {
  expect_weights_of_one_process({.make = classifier<CheckpointedLater>, .find_unused = true});
}

// One rank replays what another one records or runs op by op.
TEST(DistributedOddModels, EachRankReadsValuesOfItsOwn) {
  for (Training training :
       {Training{.make = classifier<Asking>, .accumulate = 3}, Training{.make = classifier<AskingForANumber>}}) {
    const auto body = [&](const Ranks& ranks) { return train(training, ranks); };
    const auto eager = run_ranks(2, body);
    training.mode = "graph";
    const auto graph = run_ranks(2, body);
    expect_same_on_all(eager);
    expect_same_on_all(graph);
    if (HasFailure()) FAIL() << "accumulate " << training.accumulate;
    for (const auto& [name, tensor] : eager[0].tensors) EXPECT_TRUE(same_bits(tensor, graph[0].at(name))) << name;
  }
}

TEST(DistributedOddModels, ABufferIsExpanded) { expect_weights_of_one_process({.make = classifier<Masked>}); }

// A step that was captured before comes back with the parameters that it was captured for.
TEST(DistributedOddModels, ALayerIsFrozenByTurns) {
  const auto turns = [](BaseTrainer& trainer) {
    auto hook = std::make_unique<CallbackHook>("turns");
    hook->on(HookPoint::kBeforeTrainEpoch, [](TrainContext& context) {
      for (auto& [name, parameter] : context.task.named_parameters()) {
        Tensor tensor = parameter;
        if (name.starts_with("c.")) tensor.requires_grad_(context.progress.epoch % 2 == 1);
      }
    });
    trainer.add_hook(std::move(hook));
  };
  expect_weights_of_one_process({.prepare = turns});
}

std::unique_ptr<Task> tagger() {
  return make_task(
      std::make_shared<Layers>(),
      [](Layers& module, const Batch& batch) {
        return torch::nn::functional::cross_entropy(module.forward(batch["x"]), batch["t"]);
      },
      [](const Batch& batch) { return static_cast<double>((batch["t"] != -100).sum().item<int64_t>()); });
}

// With 4 ranks some have a micro-batch of two samples that are both ignored: a mean over nothing.
TEST(DistributedOddModels, LabelsAreIgnored) {
  NamedTensors samples = classified(53);
  samples[1].second.masked_fill_(torch::arange(53) % 2 != 0, -100);
  expect_weights_of_one_process({.make = tagger, .samples = samples});
}

void expect_all(const std::vector<RankResult>& results, int exit_code, const std::string& text) {
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, exit_code) << result.error;
    EXPECT_NE(result.error.find(text), std::string::npos) << "'" << text << "' is not in: " << result.error;
  }
}

// The first addition was sent to the other ranks before the second came.
TEST(DistributedOddModels, ALayerIsCheckpointedMoreOftenThanEverBefore) {
  const Training training{.make = classifier<CheckpointedMoreLater>};
  expect_all(run_ranks(2, [&](const Ranks& ranks) { return train(training, ranks); }), 2,
             "added to the gradient of 'b.bias' 2 times in one backward on rank ");
}

class DistributedSettings : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<BaseTrainer> trainer(const Ranks& ranks, TrainerOptions options = {}) {
    options.distributed.communicator = ranks;
    return make_trainer(GetParam(), classifier<Layers>(), options);
  }
  static void take_step(BaseTrainer& trainer) { trainer.step(batch_of(classified(4))); }
};

TEST_P(DistributedSettings, AllLabelsOfAnStepAreIgnored) {
  expect_all(run_ranks(2,
                       [](const Ranks& ranks) {
                         TrainerOptions options;
                         options.distributed.communicator = ranks;
                         const auto trainer = make_trainer(GetParam(), tagger(), options);
                         NamedTensors samples = classified(4);
                         samples[1].second.fill_(-100);
                         trainer->step(batch_of(samples));
                         return NamedTensors();
                       }),
             3, "all micro-batches of step 0 have weight 0");
}

TEST_P(DistributedSettings, OptionsDiffer) {
  const std::vector<std::pair<std::string, std::function<void(TrainerOptions&)>>> cases = {
      {"lr of group 0: 0.25; on rank 0 lr of group 0: 0.001",
       [](TrainerOptions& o) { o.optimizer = AdamW{.lr = 0.25}; }},
      {"optimizer: SGD; on rank 0 optimizer: AdamW", [](TrainerOptions& o) { o.optimizer = SGD{}; }},
      {"clip_grad: on; on rank 0 clip_grad: off", [](TrainerOptions& o) { o.clip_grad = ClipNorm{}; }},
      {"schedules: 1; on rank 0 schedules: 0", [](TrainerOptions& o) { o.schedules = {Linear{.end = 9}}; }},
      {"bucket_bytes: 1; on rank 0 bucket_bytes: 26214400", [](TrainerOptions& o) { o.distributed.bucket_bytes = 1; }}};
  for (const auto& [text, change] : cases) {
    expect_all(run_ranks(2,
                         [&](const Ranks& ranks) {
                           TrainerOptions options;
                           if (ranks->rank() == 1) change(options);
                           trainer(ranks, options);
                           return NamedTensors();
                         }),
               2, "rank 1 trains with other settings than rank 0 (" + text);
  }
}

TEST_P(DistributedSettings, GroupsDiffer) {
  expect_all(run_ranks(2,
                       [](const Ranks& ranks) {
                         TrainerOptions options;
                         options.param_groups = [last = ranks->rank() == 1](const Task& task, const OptimizerOptions&) {
                           NamedTensors rest = task.named_parameters();
                           const auto one = last ? rest.end() - 1 : rest.begin();
                           ParamGroups groups = {{"one", {*one}, {{"lr", 0.5}}}};
                           rest.erase(one);
                           groups.push_back({"rest", rest, {}});
                           return groups;
                         };
                         trainer(ranks, options);
                         return NamedTensors();
                       }),
             2, "(group of a.weight: 1; on rank 0 group of a.weight: 0)");
}

// Groups may list their parameters in any order.
TEST_P(DistributedSettings, GroupsAreListedInAnotherOrder) {
  expect_same_on_all(run_ranks(2, [](const Ranks& ranks) {
    TrainerOptions options;
    options.param_groups = [last = ranks->rank() == 1](const Task& task, const OptimizerOptions&) {
      NamedTensors parameters = task.named_parameters();
      if (last) std::reverse(parameters.begin(), parameters.end());
      return ParamGroups{{"all", parameters, {}}};
    };
    options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
    const auto own = trainer(ranks, options);
    for (int step = 0; step < 4; ++step) take_step(*own);
    return weights_of(*own);
  }));
}

TEST_P(DistributedSettings, AHookSetsANumberOnOneRank) {
  expect_all(run_ranks(2,
                       [](const Ranks& ranks) {
                         const auto own = trainer(ranks);
                         for (int step = 0; step < 6; ++step) {
                           take_step(*own);
                           if (step == 3 && ranks->rank() == 1) own->hyper_parameters().set(0, "lr", 0.25);
                         }
                         return NamedTensors();
                       }),
             2, "(lr of group 0: 0.25; on rank 0 lr of group 0: 0.001)");
}

// In another order of calls, with the same numbers in the end.
TEST_P(DistributedSettings, AHookSetsNumbersOnAllRanks) {
  const auto results = run_ranks(2, [](const Ranks& ranks) {
    const auto own = trainer(ranks);
    for (int step = 0; step < 6; ++step) {
      take_step(*own);
      if (step != 3) continue;
      if (ranks->rank() == 0) own->hyper_parameters().set(0, "weight_decay", 0.5);
      own->hyper_parameters().set(0, "lr", 0.25);
      if (ranks->rank() == 1) own->hyper_parameters().set(0, "weight_decay", 0.5);
    }
    own->finish();
    return weights_of(*own);
  });
  expect_same_on_all(results);
}

// Whose first value is the number's own.
TEST_P(DistributedSettings, AHookFollowsACurveOnOneRank) {
  const auto drop = [](std::size_t, int64_t applied) { return applied < 5 ? 0.001 : 0.0001; };
  const auto follow = [&](const Ranks& ranks, bool alone) {
    const auto own = trainer(ranks);
    if (!alone || ranks->rank() == 1) own->hyper_parameters().set_schedule("lr", drop);
    for (int step = 0; step < 6; ++step) take_step(*own);
    return weights_of(*own);
  };
  expect_same_on_all(run_ranks(2, [&](const Ranks& ranks) { return follow(ranks, false); }));
  expect_all(run_ranks(2, [&](const Ranks& ranks) { return follow(ranks, true); }), 2,
             "(lr follows a curve: yes; on rank 0 nothing)");
}

// On one rank, before every step: after the first one, which the ranks have compared, nothing runs op by op for it.
TEST(DistributedSetting, ToTheValueThatIsThereKeepsReplays) {
  const auto results = run_ranks(2, [](const Ranks& ranks) {
    TrainerOptions options;
    options.distributed.communicator = ranks;
    GraphTrainer trainer(classifier<Layers>(), options);
    for (int step = 0; step < 10; ++step) {
      if (ranks->rank() == 0) trainer.hyper_parameters().set(0, "lr", 0.001);
      trainer.step(batch_of(classified(4)));
    }
    int64_t replays = 0;
    for (const SignatureReport& report : trainer.report()) replays += report.replays;
    return NamedTensors{{"replays", at::scalar_tensor(replays, at::kLong)}};
  });
  expect_same_on_all(results);
  EXPECT_GE(results[0].at("replays").item<int64_t>(), 6);
}

TEST_P(DistributedSettings, TwoTrainersTakeTurns) {
  const auto turns = [](const Ranks& ranks, bool in_order) {
    const auto first = trainer(ranks), second = trainer(ranks);
    for (int step = 0; step < 5; ++step) {
      const bool swap = !in_order && step == 3 && ranks->rank() == 1;
      take_step(swap ? *second : *first);
      take_step(swap ? *first : *second);
    }
    return weights_of(*first);
  };
  expect_same_on_all(run_ranks(2, [&](const Ranks& ranks) { return turns(ranks, true); }));
  expect_all(run_ranks(2, [&](const Ranks& ranks) { return turns(ranks, false); }), 2, "trainer number: ");
}

INSTANTIATE_TEST_SUITE_P(Modes, DistributedSettings, ::testing::Values("eager", "graph"),
                         [](const auto& mode) { return std::string(mode.param); });

}  // namespace
}  // namespace duet
