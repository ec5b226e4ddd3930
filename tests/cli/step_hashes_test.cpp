#include "cli/step_hashes.h"
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/device.h"
#include "cli/registry.h"
#include "cli/zoo/classifiers.h"
#include "core/task.h"
#include "make_trainer.h"
#include "tests/cli/program_call.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_runs.h"

// What `duet compare` finds where two runs part.

namespace duet {
namespace {

std::vector<StepHashes> hashes_of(uint64_t seed, double lr, int steps = 4) {
  seed_all(seed);
  const auto trainer = make_trainer(Mode::kEager, make_mlp({.in_features = 6, .num_classes = 3, .hidden = {4}}),
                                    {.optimizer = SGD{.lr = lr}, .device = "cpu"});
  std::vector<StepHashes> hashes;
  trainer->add_hook(std::make_unique<StepHashHook>(hashes, steps));
  const Batch batch = {{"input", at::ones({4, 6})}, {"target", at::zeros({4}, at::kLong)}};
  for (int step = 0; step < steps; ++step) trainer->step(batch);
  trainer->finish();
  return hashes;
}

TEST(StepHashes, NameTheFirstStepAndTensorThatDiffer) {
  const std::vector<StepHashes> run = hashes_of(1, 0.1);
  ASSERT_EQ(run.size(), 4U);
  EXPECT_FALSE(first_difference(run, hashes_of(1, 0.1)));
  const auto other_rate = first_difference(run, hashes_of(1, 0.2));
  ASSERT_TRUE(other_rate);
  EXPECT_EQ(other_rate->step, 1);
  EXPECT_EQ(other_rate->tensor.rfind("weight '", 0), 0U) << other_rate->tensor;
  EXPECT_LT(other_rate->differing, other_rate->compared);
  const auto other_weights = first_difference(run, hashes_of(2, 0.1));
  ASSERT_TRUE(other_weights);
  EXPECT_EQ(other_weights->tensor, "loss");
  const auto longer = first_difference(run, hashes_of(1, 0.1, 5));
  ASSERT_TRUE(longer);
  EXPECT_EQ(longer->step, 5);
}

// Changes the weights of the second run and later ones, at the beginning or the end of training.
struct PartingHook : Hook {
  PartingHook(bool parts, bool at_end) : parts(parts), at_end(at_end) {}
  std::string name() const override { return "parting"; }
  void before_train(TrainContext& context) override { change(context, !at_end); }
  void after_train(TrainContext& context) override { change(context, at_end); }
  void change(TrainContext& context, bool now) const {
    const at::NoGradGuard no_grad;
    if (!parts || !now) return;
    for (const auto& [name, weight] : context.task.named_parameters()) weight.mul_(1.5);
  }
  const bool parts, at_end;
};

TEST(Compare, SaysWhereTheModesPart) {
  const testing::ProgramFolder folder;
  struct Case {
    bool at_end;
    int64_t step;
    std::string place;  // the first that differs
  };
  for (const Case& c : {Case{false, 1, "loss"}, Case{true, 2, "weight 'conv1.weight'"}}) {
    const std::string type = c.at_end ? "PartsAtEnd" : "PartsAtStart";
    register_hook(type, [at_end = c.at_end, runs = 0](ConfigNode&, HookContext&) mutable {
      return std::make_unique<PartingHook>(++runs > 1, at_end);
    });
    const std::string hooks = "custom_hooks=[{type: " + type + "}]";
    const testing::Ran ran =
        testing::run_program({"compare", "base.yaml", hooks, "--steps", "2", "--bisect", "--json", "result.json"});
    EXPECT_EQ(ran.code, 1) << ran.text;
    expect_contains(ran.text,
                    {"NOT identical: first seen after step " + std::to_string(c.step) + ", in " + c.place,
                     c.at_end ? "every tensor of 2 steps has the same bits" : "first difference: step 1, loss"});
    const auto result = nlohmann::json::parse(read_bytes("result.json"));
    const auto& first = result["first_difference"];
    EXPECT_EQ(result["bit_identical"], false);
    EXPECT_EQ(first["step"], c.step);
    EXPECT_EQ(first["tensor"], c.place);
    EXPECT_EQ(first["eager_loss"] == first["graph_loss"], c.at_end);
  }
}

}  // namespace
}  // namespace duet
