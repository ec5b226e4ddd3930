#include <cmath>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "base/error.h"
#include "cli/zoo/classifiers.h"
#include "cli/zoo/gpt.h"
#include "core/task.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

Batch images(int64_t count) {
  return {{"image", at::randn({count, 1, 28, 28})}, {"target", at::randint(10, {count}, at::kLong)}};
}

Batch text(int64_t count, int64_t length) {
  return {{"input", at::randint(50, {count, length}, at::kLong)},
          {"target", at::randint(50, {count, length}, at::kLong)}};
}

const at::Tensor& named(const NamedTensors& tensors, const std::string& name) {
  for (const auto& item : tensors) {
    if (item.first == name) return item.second;
  }
  throw DataError("no tensor " + name);
}

GptOptions small_gpt() {
  return {.vocab_size = 50, .n_layer = 2, .n_head = 2, .n_embd = 16, .context = 12, .dropout = 0.1};
}

TEST(SmallCnn, PredictsWhatAValidationSees) {
  const auto task = make_small_cnn();
  task->train(false);
  const Batch batch = images(4);
  EXPECT_TRUE(at::equal(named(task->validation_step(batch), "prediction"), named(task->predict(batch), "prediction")));
  EXPECT_EQ(task->weight(batch), 4);
}

TEST(Mlp, SaysThatSamplesOfOneNumberNeedARow) {
  const auto task = make_mlp({.in_features = 1, .num_classes = 2});
  expect_error<ConfigError>([&] { task->predict({{"input", at::randn({4})}}); },
                            {"[Mlp]", "[4]", "[N, 1]", "array[:, None]"});
}

TEST(Gpt, StartsAtTheEntropyOfItsVocabulary) {
  seed_all(0);
  const auto task = make_gpt(small_gpt());
  EXPECT_NEAR(task->training_step(text(16, 12)).loss.item<double>(), std::log(50.0), 0.1);
  EXPECT_EQ(task->weight(text(4, 12)), 48);
}

// Labels of -100 are not in the mean that cross entropy takes.
TEST(Models, IgnoredTargetsHaveNoWeight) {
  for (const at::ScalarType type : {at::kLong, at::kInt}) {
    Batch batch = images(6);
    at::Tensor target = batch["target"].to(type);
    target.narrow(0, 1, 2).fill_(-100);
    batch.set("target", target);
    EXPECT_EQ(make_mlp()->weight(batch), 4) << type;
  }
  Batch batch = text(4, 12);
  at::Tensor target = batch["target"].clone();
  target.narrow(1, 5, 7).fill_(-100);
  batch.set("target", target);
  EXPECT_EQ(make_gpt(small_gpt())->weight(batch), 20);
  batch.set("target", target.t());  // not contiguous
  EXPECT_EQ(make_gpt(small_gpt())->weight(batch), 20);
}

TEST(Gpt, LooksOnlyBack) {
  seed_all(0);
  const auto task = make_gpt(small_gpt());
  task->train(false);
  const at::Tensor tokens = at::arange(12, at::kLong).unsqueeze(0);
  at::Tensor changed = tokens.clone();
  changed[0][8] = 40;
  const at::Tensor a = named(task->predict({{"input", tokens}}), "prediction");
  const at::Tensor b = named(task->predict({{"input", changed}}), "prediction");
  EXPECT_EQ(a.sizes(), (std::vector<int64_t>{1, 12, 50}));
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 8), b.narrow(1, 0, 8)));
  EXPECT_FALSE(at::equal(a.narrow(1, 8, 4), b.narrow(1, 8, 4)));
}

TEST(Gpt, RefusesLongerInputs) {
  const auto task = make_gpt(small_gpt());
  EXPECT_THROW(task->training_step(text(1, 13)), ConfigError);
  EXPECT_NO_THROW(task->training_step(text(1, 5)));
}

TEST(Models, SameSeedSameWeights) {
  const auto weights = [](uint64_t seed) {
    seed_all(seed);
    return make_gpt(small_gpt())->named_parameters();
  };
  const NamedTensors a = weights(7), b = weights(7), c = weights(8);
  bool all_same = true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << a[i].first;
    all_same = all_same && at::equal(a[i].second, c[i].second);
  }
  EXPECT_FALSE(all_same);
}

TEST(Models, RefuseOptionsOutOfRange) {
  EXPECT_THROW(make_small_cnn({.channels = {}}), ConfigError);
  EXPECT_THROW(make_small_cnn({.channels = {1, 1, 1, 1, 1}}), ConfigError);  // 28 halves four times
  EXPECT_THROW(make_small_cnn({.dropout = 1.0}), ConfigError);
  EXPECT_THROW(make_mlp({.dropout = std::nan("")}), ConfigError);
  EXPECT_THROW(make_gpt({}), ConfigError);
  EXPECT_THROW(make_gpt({.vocab_size = 5, .n_head = 3, .n_embd = 16}), ConfigError);
  EXPECT_THROW(make_gpt({.vocab_size = int64_t{1} << 40}), ConfigError);
}

}  // namespace
}  // namespace duet
