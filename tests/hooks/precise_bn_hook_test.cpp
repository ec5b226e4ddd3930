#include "hooks/precise_bn_hook.h"
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "checkpoint/checkpoint.h"
#include "core/task.h"
#include "data/data_loader.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/ema_hook.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using at::Tensor;

class PreciseBN : public testing::InBothModes {};
DUET_IN_BOTH_MODES(PreciseBN);

struct Model : torch::nn::Module {
  torch::nn::BatchNorm1d a{2}, b{2};
  torch::nn::Dropout dropout{0.5};
  torch::nn::Linear head{6, 2};
  Model() {
    register_module("a", a);
    register_module("b", b);
    register_module("dropout", dropout);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) { return head(dropout(b(a(x).square() * 2 + x).flatten(1))); }
};

std::shared_ptr<DataSource> data(bool shuffle, bool endless = false) {
  const Tensor x = (torch::arange(60, torch::kFloat) * 7).remainder(13).view({10, 2, 3});
  auto set = std::make_shared<TensorDataset>(NamedTensors{{"x", x}, {"y", torch::arange(10) % 2}});
  std::unique_ptr<Sampler> sampler = std::make_unique<EpochSampler>(10, shuffle, 3);
  if (endless) sampler = std::make_unique<InfiniteSampler>(10, shuffle, 3);
  return std::make_shared<DataLoader>(set, std::move(sampler), DataLoaderOptions{.batch_size = 4});
}

struct Trained {
  std::shared_ptr<DataSource> train = data(true), validation = data(false);
  std::unique_ptr<BaseTrainer> trainer;

  Trained(const std::string& mode, int64_t steps, const std::string& work_dir = "", bool precise = true) {
    seed_all(1);
    TrainerOptions options;
    options.device = "cpu";
    options.work_dir = work_dir;
    options.optimizer = SGD{.lr = 0.1};
    options.loop = {.max_steps = steps, .val_interval = 2};
    trainer = testing::make_trainer(mode,
                                    make_task(std::make_shared<Model>(),
                                              [](Model& model, const Batch& batch) {
                                                return torch::nn::functional::cross_entropy(model.forward(batch["x"]),
                                                                                            batch["y"]);
                                              }),
                                    options);
    if (precise) trainer->add_hook(std::make_unique<PreciseBNHook>(data(false), PreciseBNHookOptions{.num_iter = 9}));
  }
  void go() { trainer->train(*train, validation.get()); }
};

Tensor weight(BaseTrainer& trainer, const std::string& name) { return trainer.weights().tensor(name).clone(); }

// Golden: fvcore 0.1.5, update_bn_stats over these three batches (support/peer_values.py).
TEST_P(PreciseBN, StatisticsAreThoseOfFvcore) {
  Trained run(mode(), 2);
  run.trainer->validate(*run.validation);
  const auto expect = [&](const std::string& name, double first, double second) {
    const Tensor expected = torch::tensor({first, second});
    EXPECT_TRUE(torch::allclose(weight(*run.trainer, name), expected, 1e-5)) << name << weight(*run.trainer, name);
  };
  expect("a.running_mean", 5.766666412353516, 5.9666666984558105);
  expect("a.running_var", 14.645557403564453, 13.43222427368164);
  expect("b.running_mean", 7.766664981842041, 7.966664791107178);
  expect("b.running_var", 17.75775146484375, 14.840717315673828);
  EXPECT_EQ(weight(*run.trainer, "a.num_batches_tracked").item<int64_t>(), 0);
}

TEST_P(PreciseBN, TrainingGoesOnAsIfNothingHadBeen) {
  std::vector<Tensor> seen;
  for (const bool precise : {true, false}) {
    Trained run(mode(), 7, "", precise);
    run.trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& at) {
      for (const auto& item : at.task.named_buffers()) seen.push_back(item.second.clone());
      seen.push_back(at.step.loss().clone());
    });
    run.go();
  }
  ASSERT_EQ(seen.size() % 2, 0U);
  for (std::size_t i = 0; i < seen.size() / 2; ++i)
    EXPECT_TRUE(testing::same_bits(seen[i], seen[seen.size() / 2 + i])) << i;
}

// The checkpoint of step 4 is saved after its validation, with precise statistics in it.
TEST_P(PreciseBN, AreUndoneOnResumeExactly) {
  TempDir folder;
  const auto checkpoints = [] {
    return std::make_unique<CheckpointHook>(
        CheckpointHookOptions{.interval = 0, .save_best = {"loss"}, .rule = "greater"});
  };
  Trained whole(mode(), 8);
  whole.go();
  Trained first(mode(), 4, folder / "run");
  first.trainer->add_hook(checkpoints());
  first.go();
  const StateDict saved = CheckpointStore::load(folder / "run/checkpoints/step-4");
  EXPECT_TRUE(saved.has("hooks.precise_bn.weights.a.running_mean"));
  EXPECT_FALSE(testing::same_bits(saved.tensor("model.a.running_mean"),
                                  saved.tensor("hooks.precise_bn.weights.a.running_mean")));
  Trained second(mode(), 8);
  second.trainer->load_state_dict(saved);
  second.go();
  testing::expect_same_bits(second.trainer->weights(), whole.trainer->weights());
}

TEST_P(PreciseBN, GoOnInEndlessDataOnResume) {
  const auto trained = [this](int64_t steps, const StateDict& from) {
    Trained run(mode(), steps, "", /*precise=*/false);
    run.trainer->add_hook(
        std::make_unique<PreciseBNHook>(data(true, /*endless=*/true), PreciseBNHookOptions{.num_iter = 2}));
    if (!from.empty()) run.trainer->load_state_dict(from);
    run.go();
    return copy_of(run.trainer->state_dict());
  };
  const StateDict whole = trained(8, {}), resumed = trained(8, trained(4, {}));
  testing::expect_same_bits(resumed.part("model"), whole.part("model"));
}

// An average that holds buffers, too, comes in before the statistics and goes before they do.
TEST_P(PreciseBN, AreThoseOfAnAverageAndLeaveTrainingsOwn) {
  std::vector<Tensor> kept;
  for (const bool precise : {true, false}) {
    Trained run(mode(), 5, "", precise);
    run.trainer->add_hook(
        std::make_unique<EMAHook>(EMAHookOptions{.average = {.momentum = 0.3}, .update_buffers = true}));
    run.go();
    kept.push_back(weight(*run.trainer, "b.running_var"));
  }
  EXPECT_TRUE(testing::same_bits(kept[0], kept[1]));
}

// What was loaded since the validation is trained on, not what was there before it.
TEST_P(PreciseBN, LeavesLoadedStatisticsAlone) {
  std::vector<Tensor> ends;
  for (const bool precise : {true, false}) {
    Trained run(mode(), 9, "", precise);
    run.trainer->validate(*run.validation);
    StateDict loaded = run.trainer->weights();
    loaded.set("b.running_var", torch::tensor({3.F, 4.F}));
    loaded.set("b.running_mean", torch::tensor({1.F, 2.F}));
    run.trainer->load_weights(loaded);
    run.validation->start_epoch(0);
    run.trainer->step(*run.validation->next());
    for (const char* name : {"a.running_mean", "b.running_mean", "b.running_var"})
      ends.push_back(weight(*run.trainer, name));
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(testing::same_bits(ends[i], ends[i + 3])) << i;
}

}  // namespace
}  // namespace duet
