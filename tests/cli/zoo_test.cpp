#include <cmath>
#include <functional>
#include <set>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "base/error.h"
#include "cli/zoo/classifiers.h"
#include "cli/zoo/encoder_decoder.h"
#include "cli/zoo/gpt.h"
#include "core/task.h"
#include "data/data_loader.h"
#include "data/dataset.h"
#include "examples/08_models/lstm.h"
#include "examples/08_models/resnet.h"
#include "examples/08_models/unet.h"
#include "examples/08_models/vit.h"
#include "make_trainer.h"
#include "optim/groups/param_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

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

struct ZooModel {
  std::string name;
  std::unique_ptr<Task> (*make)();
  Batch (*batch)();
  std::vector<int64_t> prediction;
};

Batch pictures() { return {{"image", at::randn({4, 3, 16, 16})}, {"target", at::randint(5, {4}, at::kLong)}}; }

Batch masked() {
  const at::Tensor target = at::randint(3, {2, 16, 16}, at::kLong);
  target.select(1, 3).fill_(255);
  return {{"image", at::randint(256, {2, 1, 16, 16}, at::kByte)}, {"target", target}};
}

Batch tokens() { return {{"input", at::randint(7, {3, 9}, at::kLong)}, {"target", at::randint(7, {3, 9}, at::kLong)}}; }

GptOptions small_gpt() { return {.vocab_size = 7, .n_layer = 2, .n_head = 2, .n_embd = 16, .context = 12}; }

const std::vector<ZooModel>& models() {
  static const std::vector<ZooModel> kModels = {
      {"ResNet", [] { return make_resnet({.num_classes = 5, .depths = {1, 2}, .width = 8}); }, pictures, {4, 5}},
      {"ViT",
       [] {
         return make_vit({.num_classes = 5, .image_size = 16, .width = 12, .depth = 2, .heads = 3, .dropout = 0.1});
       },
       pictures,
       {4, 5}},
      {"UNet",
       [] { return make_unet({.num_classes = 3, .in_channels = 1, .channels = {4, 8}}); },
       masked,
       {2, 3, 16, 16}},
      {"SmallCnn",
       [] { return make_small_cnn({.num_classes = 5, .in_channels = 3, .image_size = 16, .channels = {4, 5, 6}}); },
       pictures,
       {4, 5}},
      {"Mlp",
       [] { return make_mlp({.in_features = 768, .num_classes = 5, .hidden = {32, 16}, .dropout = 0.1}); },
       pictures,
       {4, 5}},
      {"EncoderDecoder",
       [] {
         return make_encoder_decoder({.num_classes = 3,
                                      .channels = {6, 8, 10},
                                      .depths = {1, 2, 1},
                                      .decoder_channels = 8,
                                      .drop_path = 0.3,
                                      .dropout = 0.2});
       },
       masked,
       {2, 3, 16, 16}},
      {"Gpt", [] { return make_gpt(small_gpt()); }, tokens, {3, 9, 7}},
      {"Lstm",
       [] { return make_lstm({.vocab_size = 7, .width = 10, .num_layers = 2, .dropout = 0.2}); },
       tokens,
       {3, 9, 7}}};
  return kModels;
}

class Zoo : public ::testing::TestWithParam<ZooModel> {};

TEST_P(Zoo, TrainsAlikeInBothModesAndPredicts) {
  std::vector<NamedTensors> weights;
  std::vector<double> losses;
  NamedTensors begun;
  for (const Mode mode : {Mode::kEager, Mode::kGraph}) {
    seed_all(3);
    TrainerOptions options{.optimizer = AdamW{.lr = 0.01}, .device = "cpu"};
    if (GetParam().name == "EncoderDecoder") options.amp = at::kBFloat16;
    const auto trainer = make_trainer(mode, GetParam().make(), options, {.fallback = Fallback::kStrict});
    begun.clear();
    for (const auto& [name, tensor] : trainer->task().named_parameters())
      begun.emplace_back(name, tensor.detach().clone());
    const Batch batch = GetParam().batch();
    for (int step = 0; step < 8; ++step) losses.push_back(trainer->step(batch).loss.item<double>());
    for (const auto& [name, tensor] : trainer->predict(batch).items()) {
      EXPECT_EQ(name, "prediction");
      EXPECT_EQ(tensor.sizes(), GetParam().prediction);
    }
    weights.push_back(trainer->task().named_parameters());
    trainer->finish();
  }
  for (std::size_t i = 0; i < weights[0].size(); ++i) {
    EXPECT_TRUE(at::equal(weights[0][i].second, weights[1][i].second)) << weights[0][i].first;
    EXPECT_FALSE(at::equal(weights[0][i].second, begun[i].second)) << weights[0][i].first;
  }
  for (std::size_t step = 0; step < 8; ++step) EXPECT_EQ(losses[step], losses[step + 8]) << step;
  EXPECT_LT(losses[7], losses[0]);
}

INSTANTIATE_TEST_SUITE_P(Models, Zoo, ::testing::ValuesIn(models()), [](const auto& info) { return info.param.name; });

int64_t values_in(const Task& task) {
  int64_t count = 0;
  for (const auto& item : task.named_parameters()) count += item.second.numel();
  return count;
}

TEST(Zoo, HasTheSizesOfTheOriginals) {
  EXPECT_EQ(values_in(*make_small_cnn()), 16 * 9 + 32 + 32 * 16 * 9 + 64 + 32 * 7 * 7 * 10 + 10);
  EXPECT_EQ(values_in(*make_mlp({.hidden = {}})), 7850);
  // What torchvision's resnet18 and timm's vit_tiny_patch16_224 have.
  EXPECT_EQ(values_in(*make_resnet({.num_classes = 1000, .stem = "imagenet"})), 11689512);
  EXPECT_EQ(values_in(*make_vit({.num_classes = 1000, .image_size = 224, .patch_size = 16, .depth = 12})), 5717416);
  std::set<std::string> names;
  const auto task = make_resnet({.num_classes = 1000, .stem = "imagenet"});
  for (const auto& item : task->named_parameters()) names.insert(item.first);
  for (const char* name : {"conv1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
                           "layer4.1.bn2.weight", "fc.bias"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
}

TEST(Zoo, NamesWhatDoesNotFit) {
  const std::vector<std::pair<std::function<void()>, std::vector<std::string>>> cases = {
      {[] { make_vit({.image_size = 30}); }, {"[ViT]", "image_size is 30", "patch_size = 4"}},
      {[] { make_unet({.in_channels = 1})->predict(pictures()); }, {"[UNet]", "model.in_channels"}},
      {[] { make_lstm({}); }, {"vocab_size"}},
      {[] { make_small_cnn({.channels = {1, 1, 1, 1, 1}}); }, {"[SmallCnn]", "5 entries"}},  // 28 halves four times
      {[] { make_gpt({.vocab_size = 5, .n_head = 3, .n_embd = 16}); }, {"[Gpt] n_embd is 16"}},
      {[] { make_gpt(small_gpt())->predict({{"input", at::zeros({1, 13}, at::kLong)}}); },
       {"[1, 13]", "model.context"}},
      {[] { make_mlp({.in_features = 1})->predict({{"input", at::randn({4})}}); }, {"[Mlp]", "[4]", "a row"}},
      {[] { make_mlp({.in_features = 3})->predict({{"input", at::randn({4, 2})}}); }, {"model.in_features to 2"}},
      {[] { make_small_cnn()->predict({{"image", at::zeros({1, 1, 28, 28}, at::kDouble)}}); },
       {"'image'", "Double", "cast: {image: float32}"}},
      {[] { make_encoder_decoder({.depths = {1, 1}}); }, {"depths 2"}},
      {[] { make_encoder_decoder({.patch_size = 3}); }, {"patch_size is 3"}},
      {[] { make_encoder_decoder()->predict({{"image", at::randn({1, 1, 16, 20})}}); },
       {"[1, 1, 16, 20]", "multiples of 16", "[N, 1, H, W]"}}};
  for (const auto& [call, parts] : cases) expect_error<ConfigError>(call, parts);
}

TEST(Gpt, LooksOnlyBackAndStartsAtTheEntropyOfItsVocabulary) {
  seed_all(0);
  const auto task = make_gpt(small_gpt());
  EXPECT_NEAR(task->training_step(tokens()).loss.item<double>(), std::log(7.0), 0.1);
  task->train(false);
  const at::Tensor input = at::arange(12, at::kLong).remainder(7).unsqueeze(0);
  at::Tensor changed = input.clone();
  changed[0][8] = 5;
  const at::Tensor a = task->predict({{"input", input}})[0].second, b = task->predict({{"input", changed}})[0].second;
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 8), b.narrow(1, 0, 8)));
  EXPECT_FALSE(at::equal(a.narrow(1, 8, 4), b.narrow(1, 8, 4)));
}

// Labels of -100 are not in the mean that cross entropy takes.
TEST(Zoo, IgnoredTargetsHaveNoWeight) {
  Batch batch = {{"image", at::randn({6, 1, 28, 28})}, {"target", at::zeros({6}, at::kLong)}};
  batch["target"].narrow(0, 1, 2).fill_(-100);
  EXPECT_EQ(make_mlp()->weight(batch), 4);
  Batch text = tokens();
  text["target"].narrow(1, 5, 4).fill_(-100);
  EXPECT_EQ(make_gpt(small_gpt())->weight(text), 15);
  text.set("target", text["target"].t());  // not contiguous
  EXPECT_EQ(make_gpt(small_gpt())->weight(text), 15);
}

class ZooLabels : public ::testing::TestWithParam<Mode> {
 protected:
  static Batch batch(const at::Tensor& target) {
    Batch batch = {{"input", at::randn({4, 6})}, {"target", target}};
    batch.set_sample_ids({20, 21, 22, 23});
    return batch;
  }
};

// Before the step, and so before a replay, too: a GPU that meets such a label is lost to the process.
TEST_P(ZooLabels, OfNoClassAreNamedWithTheirSample) {
  seed_all(3);
  const auto trainer = make_trainer(GetParam(), make_mlp({.in_features = 6, .num_classes = 3, .hidden = {4}}));
  for (int step = 0; step < 6; ++step) trainer->step(batch(at::randint(3, {4}, at::kLong)));
  const at::Tensor from_one = at::tensor({1, 2, 3, 1}, at::kLong);
  expect_error<DataError>([&] { trainer->step(batch(from_one)); }, {"class 3", "sample 22", "0 to 2"});
  DataLoaderOptions loader;
  loader.batch_size = 4;
  DataLoader data(std::make_shared<TensorDataset>(batch(from_one).items()), loader);
  expect_error<DataError>([&] { trainer->validate(data); }, {"class 3", "sample 2,", "0 to 2"});
}

INSTANTIATE_TEST_SUITE_P(Modes, ZooLabels, ::testing::Values(Mode::kEager, Mode::kGraph),
                         [](const auto& info) { return info.param == Mode::kEager ? "eager" : "graph"; });

}  // namespace
}  // namespace duet
