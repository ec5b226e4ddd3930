#include <filesystem>
#include <limits>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include "hooks/nan_guard_hook.h"
#include "io/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

// What NaNGuardHook says of a step that was not finite, with trace: true.

namespace duet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBad = 57;  // the step whose batch makes a NaN
constexpr int64_t kSteps = 100;

// Four layers with dropout. The third takes the root of a number of the batch, which is 1 unless something is planted.
struct Net : torch::nn::Module {
  Net() {
    for (int64_t i = 1; i <= 4; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(8, 8)));
    }
  }
  at::Tensor forward(const Batch& batch) {
    at::Tensor x = batch["x"];
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = torch::relu(layers[i](x));
      if (i == 2) x = x * (batch["planted"] + 0 * x.mean()).sqrt();  // with a backward pass of its own
      x = torch::dropout(x, 0.2, is_training());
    }
    // A mask of -inf is meant: its softmax is finite.
    return torch::softmax(x.masked_fill(batch["masked"], -std::numeric_limits<float>::infinity()), -1);
  }
  std::vector<torch::nn::Linear> layers;
};

Batch batch_of(int64_t step, double planted) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
  at::Tensor number = torch::ones({4, 1});
  number[2][0] = planted;
  at::Tensor masked = torch::zeros({4, 8}, torch::kBool);
  masked.narrow(1, 0, 3).fill_(true);
  Batch batch{{"x", torch::randn({4, 8}, generator)}, {"planted", number}, {"masked", masked}};
  batch.set_sample_ids({40, 41, 42, 43});
  return batch;
}

at::Tensor loss_of(Net& net, const Batch& batch) { return net.forward(batch).square().mean(); }

class NonFiniteTrace : public testing::InBothModes {
 protected:
  std::unique_ptr<BaseTrainer> make(TrainerOptions options, bool guarded = true, const std::string& action = "raise") {
    seed_all(5);
    options.work_dir = folder_.path().string();
    auto trainer = testing::make_trainer(GetParam(), make_task(std::make_shared<Net>(), loss_of), options);
    if (guarded) {
      trainer->add_hook(std::make_unique<NaNGuardHook>(NaNGuardHookOptions{.action = action, .trace = true}));
    }
    return trainer;
  }
  static void run(BaseTrainer& trainer, double planted, int64_t steps = kSteps) {
    for (int64_t step = 1; step <= steps; ++step) trainer.step(batch_of(step, step == kBad ? planted : 1));
    trainer.finish();
  }
  TempDir folder_;
};

TEST_P(NonFiniteTrace, NamesTheThirdLayerInARunOfHundredStepsInHalf) {
  TrainerOptions options;
  options.amp = at::kHalf;
  const auto trainer = make(options);
  const std::string log = testing::stderr_of([&] { run(*trainer, -1); });
  EXPECT_THAT(log,
              AllOf(HasSubstr("step 57 was not finite and changed no weight: aten::sqrt gives 1 NaN and 0 infinite "
                              "among 4 numbers, in the forward pass, in or after module 'layer3'"),
                    HasSubstr("rows 2 of the batch; samples 42 of the dataset")));
  EXPECT_EQ(trainer->progress().step, kSteps);

  // Looking has changed nothing: weights, buffers and random numbers are those of a run that nobody looked at.
  const auto plain = make(options, /*guarded=*/false);
  run(*plain, -1);
  testing::expect_same_bits(trainer->state_dict().part("trainer"), plain->state_dict().part("trainer"));
  for (const auto& [name, weight] : testing::weights_of(*trainer)) {
    EXPECT_TRUE(testing::same_bits(weight, plain->weights().tensor(name))) << name;
    EXPECT_TRUE(torch::isfinite(weight).all().item<bool>()) << name;
  }
}

TEST_P(NonFiniteTrace, TellsTheCauseWhereTheRunEnds) {
  struct Case {
    double planted;
    std::vector<std::string> parts;
  };
  for (const Case& one : std::vector<Case>{
           {-1, {"aten::sqrt gives 1 NaN", "module 'layer3'", "step-57.safetensors"}},
           {0, {"in the backward pass"}},  // the root of 0 is 0, its slope infinite
           {std::nan(""), {"the batch's 'planted', read by aten::add, holds 1 NaN", "rows 2 of the batch"}}}) {
    const auto trainer = make({});
    expect_error<NonFiniteError>([&] { run(*trainer, one.planted); }, one.parts);
    EXPECT_EQ(trainer->progress().step, kBad);
  }
}

TEST_P(NonFiniteTrace, TellsTheCauseWhereTheStepItselfRaises) {
  TrainerOptions options;
  options.non_finite = NonFinite::kRaise;
  const auto trainer = make(options);
  const std::string log = testing::stderr_of([&] { EXPECT_THROW(run(*trainer, -1), NonFiniteError); });
  EXPECT_THAT(log, HasSubstr("[NaNGuardHook] aten::sqrt gives 1 NaN"));
}

TEST_P(NonFiniteTrace, WritesTheOpsTensorsAndTheBatch) {
  const auto trainer = make({}, /*guarded=*/true, "stop");
  run(*trainer, -1, kBad);
  const auto path = folder_.path() / "non_finite" / "step-57.safetensors";
  ASSERT_TRUE(std::filesystem::exists(path));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : read_safetensors(path.string())) tensors[name] = tensor;
  const Batch batch = batch_of(kBad, -1);
  ASSERT_EQ(tensors.count("input.0") + tensors.count("output.0") + tensors.count("batch.x"), 3U);
  EXPECT_TRUE(testing::same_bits(tensors["input.0"], batch["planted"]));
  EXPECT_TRUE(testing::same_bits(tensors["batch.x"], batch["x"]));
  EXPECT_TRUE(tensors["output.0"][2][0].isnan().item<bool>());
}

TEST_P(NonFiniteTrace, NamesAWeightThatWasSpoiledBefore) {
  const auto trainer = make({});
  trainer->on(
      HookPoint::kBeforeTrainIter,
      [](TrainContext& context) {
        if (context.progress.step + 1 != kBad) return;
        const at::NoGradGuard no_grad;
        context.task.named_parameters()[4].second.data()[1][1] = std::nan("");
      },
      "spoil", kHighest);
  expect_error<NonFiniteError>([&] { run(*trainer, 1); },
                               {"the weight 'layer3.weight', read by aten::", "module 'layer3'"});
}

TEST_P(NonFiniteTrace, SaysNothingOfALossScaleThatIsTooHigh) {
  TrainerOptions options;
  options.amp = at::kHalf;
  options.loss_scale = LossScaleOptions{.init_scale = 1e30};
  const auto trainer = make(options);
  const std::string log = testing::stderr_of([&] { run(*trainer, 1); });
  EXPECT_THAT(log, Not(HasSubstr("NaNGuardHook")));
}

DUET_IN_BOTH_MODES(NonFiniteTrace);

}  // namespace
}  // namespace duet
