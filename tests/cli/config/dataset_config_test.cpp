#include "cli/config/dataset_config.h"
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

// What a config says of a dataset or a stream beside its own keys, and in which order it is done.

namespace duet {
namespace {

// Batches of two: `value` int32 counts samples, `picture` uint8 [2, 6, 6, 3], `row` [1, 3] where it is asked for.
class Counts : public DataSource {
 public:
  Counts(bool has_ids, bool has_row) : has_ids_(has_ids), has_row_(has_row) {}
  void start_epoch(int64_t epoch) override {
    if (!resumed_ || epoch != epoch_) next_ = 0;
    resumed_ = false, epoch_ = epoch;
  }
  std::optional<Batch> next() override {
    if (next_ == 6) return std::nullopt;
    Batch batch{{"value", at::arange(next_, next_ + 2, at::kInt)}, {"picture", at::ones({2, 6, 6, 3}, at::kByte)}};
    if (has_row_) batch.set("row", at::ones({1, 3}));
    if (has_ids_) batch.set_sample_ids({next_, next_ + 1});
    next_ += 2;
    return batch;
  }
  int64_t batches_per_epoch() const override { return 3; }
  StateDict state_dict() const override {
    StateDict state;
    state.set("next", StateValue(next_));
    state.set("epoch", StateValue(epoch_));
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    next_ = state.integer("next"), epoch_ = state.integer("epoch"), resumed_ = true;
  }

 private:
  bool has_ids_, has_row_, resumed_ = false;
  int64_t next_ = 0, epoch_ = 0;
};

// Adds a random number to "x", which must be float64 by then.
class Shake : public Transform {
 public:
  void apply(Batch& sample, SampleRandom& random) const override {
    EXPECT_EQ(sample["x"].scalar_type(), at::kDouble);
    EXPECT_EQ(sample.size(), 1);
    sample.set("x", sample["x"] + random.uniform());
  }
};

const bool kOwnDataRegistered = [] {
  register_dataset("Raw", [](ConfigNode&) {
    const at::Tensor pixels = at::arange(2 * 16, at::kByte).view({2, 4, 4});
    return std::make_shared<TensorDataset>(
        NamedTensors{{"pixels", pixels}, {"label", at::tensor({0, 2}, at::kInt)}, {"noise", at::full({2, 3}, 0.5)}});
  });
  register_source("Counts", [](ConfigNode& node, SourceContext&) {
    const bool has_ids = node.read<bool>("ids", false), has_row = node.read<bool>("row", false);
    return std::make_unique<Counts>(has_ids, has_row);
  });
  register_transform("Shake", [](ConfigNode&) { return std::make_unique<Shake>(); });
  return true;
}();

std::shared_ptr<const Dataset> raw(const std::string& keys) {
  return make_dataset(ConfigNode::parse_text("type: Raw\n" + keys, "c.yaml"));
}

TEST(DatasetConfig, TransformsSeeTheNamesAndDtypesThatTheConfigGave) {
  const Batch batch = raw("rename: {pixels: image, label: target}\ncast: {target: int64}\n"
                          "transforms: [{type: ChannelsFirst}, {type: Normalize}, {type: OneHot, num_classes: 3}]\n")
                          ->get({0, 1});
  EXPECT_EQ(batch["image"].sizes(), at::IntArrayRef({2, 1, 4, 4}));
  EXPECT_FLOAT_EQ(batch["image"][1][0][3][3].item<float>(), (31.0F / 255 - 0.5F) / 0.5F);
  EXPECT_TRUE(at::equal(batch["target"], at::tensor({1.0F, 0.0F, 0.0F, 0.0F, 0.0F, 1.0F}).view({2, 3})));
  const Batch mixed = raw("rename: {label: target}\ntransforms: [{type: Mixup, num_classes: 3}]\n")->get({0, 1});
  EXPECT_EQ(mixed["target"].sizes(), at::IntArrayRef({2, 3}));
  const Batch cast =
      raw("cast: {pixels: float32, label: int64}\ntransforms: [{type: ChannelsFirst, tensor: pixels}]\n")->get({0});
  EXPECT_EQ(cast["pixels"].scalar_type(), at::kFloat);
  EXPECT_EQ(cast["label"].scalar_type(), at::kLong);
}

TEST(DatasetConfig, ACastToIntegersKeepsEveryValue) {
  expect_error<DataError>([] { raw("cast: {noise: int64}\n")->get({0, 1}); }, {"'noise'", "that Long cannot hold"});
}

TEST(DatasetConfig, ClassesAreThoseOfTheRenamedTarget) {
  EXPECT_EQ(raw("rename: {label: target}\ntransforms: [{type: OneHot, num_classes: 3}]\n")->labels(),
            (std::vector<int64_t>{0, 2}));
}

TEST(DatasetConfig, NamesMayBeSwappedButNotTakenTwice) {
  const Batch swapped = raw("rename: {label: noise, noise: label}\n")->get({0});
  EXPECT_EQ(swapped["noise"].scalar_type(), at::kInt);
  expect_error<ConfigError>([] { raw("rename: {label: noise}\n")->get({0}); }, {"rename", "two tensors", "'noise'"});
  expect_error<ConfigError>([] { raw("rename: {label: target}\ncast: {label: int64}\n")->get({0}); },
                            {"cast.label", "is no tensor", "target"});
}

std::unique_ptr<DataSource> stream(const std::string& keys, int64_t rank = 0) {
  return make_source(ConfigNode::parse_text("type: Counts\n" + keys, "c.yaml"), {2, 5, rank, 2});
}

const std::string kShaken = "rename: {value: x}\ncast: {x: float64}\ntransforms: [{type: Shake}]\n";

std::vector<double> rest_of(DataSource& source) {
  std::vector<double> values;
  while (const auto batch = source.next()) {
    const at::Tensor x = (*batch)["x"];
    values.insert(values.end(), x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel());
  }
  return values;
}

std::vector<double> epoch_of(DataSource& source, int64_t epoch) {
  source.start_epoch(epoch);
  return rest_of(source);
}

TEST(StreamConfig, NamesAndDtypesChangeBeforeTransforms) {
  const auto plain = stream("rename: {value: x}\ncast: {x: float64, picture: float32}\n");
  EXPECT_EQ(epoch_of(*plain, 0), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  plain->start_epoch(1);
  EXPECT_EQ((*plain->next())["picture"].scalar_type(), at::kFloat);
  const auto shaken = stream(kShaken);
  const std::vector<double> values = epoch_of(*shaken, 0);
  ASSERT_EQ(values.size(), 6U);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(values[static_cast<std::size_t>(i)], static_cast<double>(i) + SampleRandom({5, 0}, i).uniform());
  }
  const auto first = stream("transforms: [{type: ChannelsFirst, tensor: picture}]\n");
  EXPECT_EQ((*first->next())["picture"].sizes(), at::IntArrayRef({2, 3, 6, 6}));
}

TEST(StreamConfig, RandomNumbersFollowTheEpochTheNumberAndTheProcess) {
  const auto source = stream(kShaken), with_ids = stream("ids: true\n" + kShaken), other = stream(kShaken, 1);
  const std::vector<double> values = epoch_of(*source, 0);
  EXPECT_NE(epoch_of(*source, 1), values);
  EXPECT_EQ(epoch_of(*source, 0), values);
  EXPECT_EQ(epoch_of(*with_ids, 0), values);
  EXPECT_NE(epoch_of(*other, 0), values);
}

TEST(StreamConfig, AResumeDrawsWhatTheRunWouldHaveDrawn) {
  const auto source = stream(kShaken), resumed = stream(kShaken);
  source->start_epoch(2);
  source->next();
  resumed->load_state_dict(source->state_dict());
  resumed->start_epoch(2);
  EXPECT_EQ(resumed->batches_per_epoch(), 3);
  const std::vector<double> rest = rest_of(*source);
  EXPECT_EQ(rest.size(), 4U);
  EXPECT_EQ(rest_of(*resumed), rest);
  EXPECT_EQ(epoch_of(*resumed, 3), epoch_of(*source, 3));
}

TEST(StreamConfig, NamesWhatDoesNotFit) {
  expect_error<ConfigError>([] { stream("rename: {valeu: x}\n")->next(); },
                            {"c.yaml:2: rename.valeu", "did you mean 'value'"});
  expect_error<ConfigError>([] { stream("rename: {value: picture}\n")->next(); },
                            {"rename", "two tensors", "'picture'"});
  expect_error<ConfigError>([] { stream("cast: {value: flaot32}\n"); }, {"cast.value", "did you mean 'float32'"});
  expect_error<DataError>([] { stream("row: true\n" + kShaken)->next(); }, {"'row'", "[1, 3]", "2 rows"});
  expect_error<ConfigError>([] { stream("transforms: [{type: RandomFlip, chance: 0}]\n")->next(); },
                            {"[RandomFlip]", "picture uint8 [6, 6, 3]", "ChannelsFirst"});
}

TEST(StreamConfig, KeysWithoutEffectAreWarnedOf) {
  const std::string text = "model: {type: Mlp}\ntrainer: {max_steps: 1}\ndata: {train: {type: Counts, ";
  const auto warnings = [&](const std::string& key) {
    return testing::stderr_of([&] { parse_run_config(ConfigNode::parse_text(text + key + "}}\n", "c.yaml"), "c"); });
  };
  for (const char* key : {"shuffle: false", "sampler: weighted", "num_workers: 2", "loader: default"})
    EXPECT_THAT(warnings(key), ::testing::HasSubstr(" has no effect")) << key;
  EXPECT_EQ(warnings("batch_size: 3, rename: {value: x}"), "");
}

}  // namespace
}  // namespace duet
