#include "hooks/ema_hook.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using namespace testing;

GraphOptions watched_graph() {
  GraphOptions graph;
  graph.fallback = Fallback::kStrict;
  graph.verify_interval = 2;  // every other replay runs both ways
  return graph;
}

struct EMASetting {
  EMAHookOptions ema = {.average = {.momentum = 0.2}};
  ToyTask task = mlp_task();
  TrainerOptions options{};
};

std::unique_ptr<BaseTrainer> make(const std::string& mode, EMASetting setup = {}) {
  seed_all(5);
  setup.options.optimizer = AdamW{.lr = 1e-2};
  auto trainer = make_trainer(mode, setup.task.make(), setup.options, watched_graph());
  trainer->add_hook(std::make_unique<EMAHook>(setup.ema));
  return trainer;
}

void steps(BaseTrainer& trainer, int64_t from, int64_t to, const ToyTask& task = mlp_task()) {
  for (int64_t n = from; n < to; ++n) trainer.step(task.batch(8, static_cast<uint64_t>(n)));
}

StateDict average_of(const BaseTrainer& trainer, const std::string& name = "ema") {
  return copy_of(trainer.state_dict().part("hooks." + name + ".weights"));
}

bool equal(const StateDict& a, const StateDict& b) {
  for (const auto& [name, tensor] : a.tensors()) {
    if (!same_bits(tensor, b.tensor(name))) return false;
  }
  return a.tensors().size() == b.tensors().size();
}

class EMA : public testing::InBothModes {};

// Its values are those of the step, whatever trains it.
class ScriptedTask : public FakeTask {
 public:
  NamedTensors named_parameters() const override { return {{"weight", weight}}; }
  NamedTensors named_buffers() const override {
    return {{"norm.running_mean", mean}, {"norm.running_var", variance}, {"norm.num_batches_tracked", count}};
  }
  void set(int64_t step) {
    const at::NoGradGuard no_grad;
    const auto fractions = [&](int64_t count, int64_t factor, int64_t modulus) {
      return (at::arange(count, at::kLong) * 11 + step * factor).remainder(modulus).to(at::kFloat) / 64 - 0.75;
    };
    weight.copy_(fractions(4, 37, 101));
    mean.copy_(fractions(3, 53, 97));
    variance.copy_(fractions(3, 29, 89) + 1);
    count.fill_(step);
  }

  at::Tensor weight = at::zeros({4}).set_requires_grad(true), mean = at::zeros({3}), variance = at::zeros({3});
  at::Tensor count = at::zeros({}, at::kLong);
};

constexpr double kMomentum = 0.05;
constexpr int64_t kGamma = 8;

// The share of the step's weights in the average, so many steps after the first one.
using Share = double (*)(double steps, double interval);
const std::map<std::string, Share> kShares = {
    {"ExponentialMovingAverage", [](double, double) { return kMomentum; }},
    {"MomentumAnnealingEMA", [](double steps, double) { return std::max(kMomentum, kGamma / (kGamma + steps)); }},
    {"StochasticWeightAverage", [](double steps, double interval) { return 1 / (steps / interval + 1); }}};

at::Tensor floats_of(const ScriptedTask& task) {
  return at::cat({task.weight.detach(), task.mean, task.variance}).to(at::kDouble);
}

// By mmengine's averaged_model.py and its EMAHook: a copy until `begin` and at the first update, then every
// `interval`-th step counts, and buffers that are not averaged are copied.
TEST(EMAHook, FollowsTheRuleOfMmengine) {
  for (const auto& [type, share] : kShares) {
    for (const auto& [interval, begin] : {std::pair<int64_t, int64_t>{1, 0}, {3, 0}, {1, 10}, {3, 10}}) {
      for (const bool buffers : {false, true}) {
        SCOPED_TRACE(c10::str(type, ", interval ", interval, ", begin ", begin, ", buffers ", buffers));
        ScriptedTask task;
        task.set(0);
        FakeHyperParameters numbers;
        FakeState state;
        TrainContext context{task, numbers, state, "eager", ""};
        const NamedTensors parameters = task.named_parameters();
        context.step.parameters = &parameters;
        EMAHook hook({.average = {.type = type, .momentum = kMomentum, .gamma = kGamma, .interval = interval},
                      .update_buffers = buffers,
                      .begin_iter = begin});
        hook.before_train(context);
        at::Tensor expected;
        for (int64_t step = 1; step <= 60; ++step) {
          task.set(step);
          const StepResult output;
          StepView inside{task.named_parameters(), output, at::full({1}, step, at::kLong), {}};
          hook.in_step(inside);
          const at::Tensor now = floats_of(task);
          const int64_t steps = step - std::max<int64_t>(begin, 1);
          const double part = share(static_cast<double>(steps), static_cast<double>(interval));
          if (steps <= 0) expected = now;
          if (steps > 0 && steps % interval == 0) expected = expected + part * (now - expected);
          if (!buffers) expected = at::cat({expected.slice(0, 0, 4), now.slice(0, 4)});
          const StateDict average = hook.state_dict().part("weights");
          const at::Tensor seen = at::cat(
              {average.tensor("weight"), average.tensor("norm.running_mean"), average.tensor("norm.running_var")});
          EXPECT_TRUE(at::allclose(seen.to(at::kDouble), expected, 2e-7, 2e-7)) << "step " << step;
          EXPECT_EQ(average.tensor("norm.num_batches_tracked").item<int64_t>(), step);
        }
      }
    }
  }
}

TEST(EMAHook, WarnsOfAMomentumThatLooksLikeTheShareThatIsKept) {
  const auto warned = [](const WeightAverageOptions& average) {
    FakeRun run;
    EMAHook hook({.average = average});
    return stderr_of([&] { hook.before_train(run.context); });
  };
  expect_contains(warned({.momentum = 0.999}), {"[EMAHook] found momentum 0.999", "set 0.001"});
  EXPECT_EQ(warned({.momentum = 0.5}), "");
  expect_error<ConfigError>([] { EMAHook hook({.begin_iter = 3, .begin_epoch = 1}); }, {"at most one"});
}

TEST_P(EMA, LeavesTheTrainingAsItIs) {
  const auto with = make(mode());
  steps(*with, 0, 12);
  seed_all(5);
  TrainerOptions options;
  options.optimizer = AdamW{.lr = 1e-2};
  const auto without = testing::make_trainer(mode(), testing::mlp_task().make(), options, watched_graph());
  steps(*without, 0, 12);
  expect_same_bits(with->weights(), without->weights());
}

TEST_P(EMA, AnStepThatIsSkippedChangesNothing) {
  for (const int64_t begin : {0, 6}) {
    EMASetting setup{.ema = {.average = {.momentum = 0.2, .interval = 2}, .begin_iter = begin}};
    setup.options.non_finite = NonFinite::kSkip;
    const auto trainer = make(mode(), setup);
    Batch broken = testing::mlp_task().batch(8, 99);
    broken.set("input", broken["input"] * std::nan(""));
    for (int64_t n = 0; n < 16; ++n) {
      trainer->step(testing::mlp_task().batch(8, static_cast<uint64_t>(n)));
      if (n % 5 == 2) {
        const StateDict before = average_of(*trainer);
        const StateDict random = random_state();
        trainer->step(broken);
        set_random_state(random);  // the dropout of the next step is that of the other run
        expect_same_bits(average_of(*trainer), before);
      }
    }
    const auto again = make(mode(), setup);
    steps(*again, 0, 16);
    expect_same_bits(average_of(*trainer), average_of(*again));
    EXPECT_FALSE(equal(average_of(*trainer), trainer->weights()));
  }
}

TEST_P(EMA, ResumesInTheMiddle) {
  const std::vector<WeightAverageOptions> kinds = {{.momentum = 0.1},
                                                   {.type = "MomentumAnnealingEMA", .interval = 3},
                                                   {.type = "StochasticWeightAverage", .interval = 2}};
  for (const WeightAverageOptions& kind : kinds) {
    for (const int64_t begin : {0, 9}) {
      const EMASetting setup{.ema = {.average = kind, .update_buffers = true, .begin_iter = begin},
                             .task = testing::cnn_task()};
      const auto unbroken = make(mode(), setup);
      steps(*unbroken, 0, 14, setup.task);
      const TempDir folder;
      const auto first = make(mode(), setup);
      steps(*first, 0, 7, setup.task);
      const std::string path = first->save(folder.path().string());

      const auto second = make(mode(), setup);  // before its first step
      second->load(path);
      steps(*second, 7, 14, setup.task);
      expect_same_bits(second->state_dict(), unbroken->state_dict());

      first->load(path);
      steps(*first, 7, 12, setup.task);
      first->load(path);  // in the middle of a run, with steps captured
      steps(*first, 7, 14, setup.task);
      expect_same_bits(first->state_dict(), unbroken->state_dict());
    }
  }
}

TEST_P(EMA, StartsFromTheLoadedWeightsWithoutAnAverageInTheCheckpoint) {
  const TempDir folder;
  TrainerOptions options;
  options.optimizer = AdamW{.lr = 1e-2};
  const auto plain = testing::make_trainer(mode(), testing::mlp_task().make(), options);
  steps(*plain, 0, 6);
  const std::string path = plain->save(folder.path().string());
  const auto trainer = make(mode(), {.ema = {.average = {.type = "StochasticWeightAverage"}}});
  steps(*trainer, 0, 3);
  trainer->load(path);
  expect_same_bits(average_of(*trainer), plain->weights());
  steps(*trainer, 6, 7);
  const StateDict first = copy_of(trainer->weights());
  expect_same_bits(average_of(*trainer), first);
  steps(*trainer, 7, 8);
  const at::Tensor mean = (first.tensor("b.bias") + trainer->weights().tensor("b.bias")) / 2;
  EXPECT_TRUE(at::allclose(average_of(*trainer).tensor("b.bias"), mean));
}

TEST_P(EMA, SeveralAveragesLiveSideBySide) {
  const EMASetting fast{.ema = {.average = {.momentum = 0.5}}};
  const auto alone = make(mode(), fast);
  steps(*alone, 0, 8);
  const auto both = make(mode(), fast);
  both->add_hook(std::make_unique<EMAHook>(
      EMAHookOptions{.average = {.momentum = 0.01}, .evaluate_on_ema = false, .name = "slow"}));
  steps(*both, 0, 4);
  const TempDir folder;
  const std::string path = both->save(folder.path().string());
  steps(*both, 4, 8);
  expect_same_bits(average_of(*both), average_of(*alone));
  EXPECT_FALSE(equal(average_of(*both), average_of(*both, "slow")));
  const StateDict expected = copy_of(both->state_dict());
  both->load(path);
  steps(*both, 4, 8);
  expect_same_bits(both->state_dict(), expected);

  const auto undecided = make(mode(), fast);
  undecided->add_hook(std::make_unique<EMAHook>(EMAHookOptions{.name = "slow"}));
  expect_error<ConfigError>([&] { steps(*undecided, 0, 1); }, {"'ema'", "'slow'", "evaluate_on_ema: false"});
}

TEST_P(EMA, BeginsWithAnEpoch) {
  EMASetting setup{.ema = {.average = {.momentum = 0.2}, .begin_epoch = 2}};
  setup.options.loop.max_epochs = 2;
  const auto trainer = make(mode(), setup);
  std::vector<bool> follows;
  trainer->add_hook(std::make_unique<EveryPointHook>("noting", [&](const std::string& point, TrainContext&) {
    if (point == "after_train_iter") follows.push_back(equal(average_of(*trainer), trainer->weights()));
  }));
  trainer->train(*loader(6));  // the first step of epoch 2 still copies
  EXPECT_THAT(follows, ::testing::ElementsAre(true, true, true, true, false, false));

  const auto own_loop = make(mode(), {.ema = {.begin_epoch = 2}});
  expect_error<ConfigError>([&] { steps(*own_loop, 0, 1); }, {"begin_epoch is 2", "begin_iter"});
}

TEST_P(EMA, LeavesFrozenParametersOut) {
  const EMASetting setup{.task = testing::partial_task()};
  const auto trainer = make(mode(), setup);
  steps(*trainer, 0, 6, setup.task);
  const StateDict average = average_of(*trainer), weights = trainer->weights();
  EXPECT_TRUE(same_bits(average.tensor("frozen.weight"), weights.tensor("frozen.weight")));
  EXPECT_FALSE(same_bits(average.tensor("used.weight"), weights.tensor("used.weight")));
}

TEST_P(EMA, IsWhatEvaluationUses) {
  using enum HookPoint;
  for (const HookPoint point : {kBeforeValIter, kBeforeTestIter, kBeforePredictIter}) {
    const auto trainer = make(mode());
    StateDict seen;
    trainer->on(point, [&seen](TrainContext& context) {
      for (const auto& [name, tensor] : context.task.named_parameters()) seen.set(name, tensor.detach().clone());
    });
    steps(*trainer, 0, 8);
    const StateDict weights = copy_of(trainer->weights()), average = average_of(*trainer);
    const void* place = trainer->weights().tensor("a.weight").data_ptr();
    const auto data = loader(6);
    if (point == kBeforeValIter) trainer->validate(*data);
    if (point == kBeforeTestIter) trainer->test(*data);
    if (point == kBeforePredictIter) trainer->predict(*data);
    expect_same_bits(seen, average);
    EXPECT_FALSE(equal(seen, weights));
    expect_same_bits(trainer->weights(), weights);
    expect_same_bits(average_of(*trainer), average);
    EXPECT_EQ(trainer->weights().tensor("a.weight").data_ptr(), place);
  }
}

TEST_P(EMA, ValidationLeavesTrainingAsItIs) {
  LoopOptions loop;
  loop.max_steps = 12;
  EMASetting setup;
  setup.options.loop = loop;
  const auto data = loader(10), data_again = loader(10), validation = loader(4, 1, false);
  const auto silent = make(mode(), setup);
  silent->train(*data);
  setup.options.loop.val_interval = 2;
  const auto validated = make(mode(), setup);
  validated->train(*data_again, validation.get());
  expect_same_bits(validated->state_dict(), silent->state_dict());
  if (const auto* graph = dynamic_cast<GraphTrainer*>(validated.get())) {
    EXPECT_GE(graph->replays(), 9);
  }
}

TEST_P(EMA, GivesTheWeightsBackAfterAPassThatThrows) {
  const auto unbroken = make(mode());
  steps(*unbroken, 0, 12);
  const StateDict expected = copy_of(unbroken->state_dict());

  auto trainer = make(mode());
  const auto breaks = [](TrainContext& context) {
    if (context.evaluation.batch_index == 1) throw DataError("[Planted] lost");
  };
  for (const HookPoint point : {HookPoint::kAfterValIter, HookPoint::kAfterTestIter}) trainer->on(point, breaks);
  const auto data = loader(6);
  steps(*trainer, 0, 6);
  EXPECT_THROW(trainer->validate(*data), DataError);
  steps(*trainer, 6, 12);  // the next step finds them
  expect_same_bits(trainer->weights(), expected.part("model"));
  const StateDict live = trainer->weights(), weights = copy_of(live);
  EXPECT_THROW(trainer->test(*data), DataError);
  expect_same_bits(trainer->state_dict().part("model"), weights);  // so does a state
  EXPECT_THROW(trainer->validate(*data), DataError);
  trainer.reset();
  expect_same_bits(live, weights);  // and the model that outlives its trainer
}

TEST_P(EMA, AStateTakenInTheMiddleOfAPassHoldsTheWeights) {
  const auto trainer = make(mode());
  StateDict taken;
  std::vector<StateDict> seen;
  trainer->add_hook(std::make_unique<EveryPointHook>("taking", [&](const std::string& point, TrainContext& context) {
    if (point != "before_val_iter" && point != "after_val_iter") return;
    if (point == "after_val_iter" && taken.tensors().empty()) taken = copy_of(context.trainer.checkpoint_state());
    if (point == "before_val_iter") {
      seen.emplace_back();
      for (const auto& [name, tensor] : context.task.named_parameters()) seen.back().set(name, tensor.detach().clone());
    }
  }));
  steps(*trainer, 0, 8);
  const StateDict weights = copy_of(trainer->weights()), average = average_of(*trainer);
  trainer->validate(*loader(6));
  expect_same_bits(taken.part("model"), weights);
  expect_same_bits(taken.part("hooks.ema.weights"), average);
  ASSERT_EQ(seen.size(), 3U);
  for (const StateDict& state : seen) expect_same_bits(state, average);
}

DUET_IN_BOTH_MODES(EMA);

TEST(EMAHook, GivesTheSameBitsInBothModes) {
  for (const ToyTask& task : testing::all_toy_tasks()) {
    for (const char* type : {"ExponentialMovingAverage", "MomentumAnnealingEMA", "StochasticWeightAverage"}) {
      EMASetting setup{.ema = {.average = {.type = type, .momentum = 0.1, .gamma = 5, .interval = 2},
                               .update_buffers = true,
                               .begin_iter = 3},
                       .task = task};
      setup.options.non_finite = NonFinite::kSkip;
      const auto eager = make("eager", setup);
      steps(*eager, 0, 16, task);
      const StateDict state = copy_of(eager->state_dict());
      const auto graph = make("graph", setup);
      steps(*graph, 0, 16, task);
      SCOPED_TRACE(task.name + " " + type);
      expect_same_bits(state, graph->state_dict());
      EXPECT_GE(dynamic_cast<GraphTrainer&>(*graph).replays(), 10);
    }
  }
}

}  // namespace
}  // namespace duet
