#include <cmath>
#include <set>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/zoo/encoder_decoder.h"
#include "core/task.h"
#include "optim/groups/param_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::expect_same_bits;

EncoderDecoderOptions small_model() {
  return {.num_classes = 4,
          .channels = {6, 8, 10},
          .depths = {1, 2, 1},
          .decoder_channels = 8,
          .drop_path = 0.3,
          .dropout = 0.2};
}

// Target 255 for about a quarter of the pixels.
Batch scenes(int64_t count, uint64_t seed) {
  seed_all(seed);
  const at::Tensor target = at::randint(4, {count, 16, 24}, at::kLong);
  return {{"image", at::randn({count, 1, 16, 24})},
          {"target", target.masked_fill(at::rand({count, 16, 24}) < 0.25, 255)}};
}

at::Tensor output(const NamedTensors& outputs, const std::string& name) {
  for (const auto& [key, tensor] : outputs) {
    if (key == name) return tensor;
  }
  throw DataError("no output " + name);
}

TEST(EncoderDecoder, GivesEveryParameterAGradient) {
  seed_all(0);
  const auto task = make_encoder_decoder(small_model());
  std::set<std::string> names;
  for (const auto& [name, tensor] : task->named_parameters()) EXPECT_TRUE(names.insert(name).second) << name;
  for (const char* name : {"backbone.downsample_layers.0.0.weight", "backbone.downsample_layers.2.1.bias",
                           "backbone.stages.1.1.depthwise_conv.weight", "backbone.norm2.weight",
                           "decode_head.lateral_convs.0.weight", "decode_head.conv_seg.bias"}) {
    EXPECT_TRUE(names.count(name)) << name;
  }
  task->train(true);
  const StepOutput step = task->training_step(scenes(4, 1));
  EXPECT_EQ(step.loss.dim(), 0);
  EXPECT_NEAR(step.loss.item<double>(), std::log(4.0), 0.5);
  ASSERT_EQ(step.log.size(), 1U);
  EXPECT_EQ(step.log[0].first, "acc_seg");
  step.loss.backward();
  // A block may be skipped by all samples of a batch; its gradient is then zero, but there.
  for (const auto& [name, tensor] : task->named_parameters()) ASSERT_TRUE(tensor.grad().defined()) << name;
}

TEST(EncoderDecoder, LossIsAMeanOverThePixelsThatCount) {
  seed_all(0);
  const auto task = make_encoder_decoder(small_model());
  task->train(false);
  const Batch all = scenes(4, 2);
  const NamedTensors outputs = task->validation_step(all);
  const at::Tensor logits = output(outputs, "prediction");
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{4, 4, 16, 24}));
  const at::Tensor expected = at::cross_entropy_loss(logits, all["target"], {}, at::Reduction::Mean, 255);
  EXPECT_NEAR(output(outputs, "loss").item<double>(), expected.item<double>(), 1e-6);
  EXPECT_EQ(task->weight(all), all["target"].ne(255).sum().item<double>());
  // Weighted so, the mean over parts is the mean over the whole.
  double sum = 0, weights = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const Batch part = {{"image", all["image"].narrow(0, i, 1)}, {"target", all["target"].narrow(0, i, 1)}};
    sum += task->weight(part) * output(task->validation_step(part), "loss").item<double>();
    weights += task->weight(part);
  }
  EXPECT_NEAR(sum / weights, expected.item<double>(), 1e-6);
  const at::Tensor right = at::argmax(logits, 1).eq(all["target"]).sum().to(at::kDouble) / task->weight(all);
  EXPECT_NEAR(task->training_step(all).log[0].second.item<double>(), right.item<double>(), 1e-6);
  Batch nothing = all;
  nothing.set("target", at::full_like(all["target"], 255));
  EXPECT_EQ(task->training_step(nothing).loss.item<double>(), 0);
  EXPECT_EQ(task->weight(nothing), 0);
}

TEST(EncoderDecoder, LearningRatesFallWithTheStage) {
  const auto task = make_encoder_decoder(small_model());
  const OptimizerOptions adamw = AdamW{.lr = 1.0};
  for (const ParamGroup& group :
       layer_decay_groups(*task, adamw, {.num_layers = 3, .decay_rate = 0.5, .decay_type = "stage_wise"})) {
    for (const auto& [name, tensor] : group.parameters) {
      const double depth = name.rfind("backbone.downsample_layers", 0) == 0 ? 0
                           : name.rfind("backbone.stages.", 0) == 0         ? name[16] - '0' + 1
                                                                            : 4;
      const auto lr = group.numbers.find("lr");  // absent where it is the optimizer's own
      EXPECT_EQ(lr == group.numbers.end() ? 1.0 : lr->second, std::pow(0.5, 4 - depth)) << name;
    }
  }
}

TEST(EncoderDecoder, ReplaysTheSameBitsWithEverythingOn) {
  for (const std::string amp : {"off", "bf16"}) {
    std::vector<StateDict> states;
    for (const std::string mode : {"eager", "graph"}) {
      seed_all(7);
      TrainerOptions options;
      options.optimizer = AdamW{.lr = 0.01};
      options.clip_grad = ClipNorm{.max_norm = 1.0};
      if (amp == "bf16") options.amp = at::kBFloat16;
      GraphOptions graph;
      graph.fallback = Fallback::kStrict;
      const auto trainer = testing::make_trainer(mode, make_encoder_decoder(small_model()), options, graph);
      const std::vector<Batch> window = {scenes(2, 11), scenes(3, 12)};
      seed_all(7);
      for (int i = 0; i < 8; ++i) trainer->step(window);
      trainer->finish();
      states.push_back(trainer->state_dict());
      if (const auto* captured = dynamic_cast<GraphTrainer*>(trainer.get())) {
        EXPECT_GE(captured->replays(), 5);
        for (const SignatureReport& report : captured->report()) EXPECT_NE(report.state, "eager") << report.reason;
      }
    }
    expect_same_bits(states[0], states[1]);
  }
}

TEST(EncoderDecoder, RefusesOptionsAndImagesThatDoNotFit) {
  EncoderDecoderOptions options = small_model();
  options.depths = {1, 1};
  expect_error<ConfigError>([&] { make_encoder_decoder(options); }, {"depths 2"});
  options.patch_size = 3;
  expect_error<ConfigError>([&] { make_encoder_decoder(options); }, {"patch_size is 3"});
  const auto task = make_encoder_decoder(small_model());
  expect_error<ConfigError>([&] { task->predict({{"image", at::randn({1, 1, 16, 20})}}); },
                            {"[1, 1, 16, 20]", "multiples of 8"});
  expect_error<ConfigError>([&] { task->predict({{"image", at::randn({1, 3, 16, 16})}}); }, {"[N, 1, H, W]"});
}

}  // namespace
}  // namespace duet
