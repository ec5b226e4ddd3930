#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include "core/hook.h"
#include "hooks/prediction_hooks.h"
#include "io/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using ::testing::ElementsAre;
using testing::loader;
using testing::Names;

const at::Tensor& find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& entry : tensors) {
    if (entry.first == name) return entry.second;
  }
  throw std::out_of_range(name);
}

class PredictionWriter : public testing::InBothModes {
 protected:
  static std::unique_ptr<BaseTrainer> trainer(const PredictionWriterHookOptions& options, const std::string& work_dir) {
    auto trainer = testing::trainer_for(GetParam(), {}, "AdamW", work_dir);
    trainer->add_hook(std::make_unique<PredictionWriterHook>(options));
    return trainer;
  }
  // Outputs for five samples in batches of 2, 2 and 1.
  static std::vector<at::Tensor> predict(BaseTrainer& trainer) {
    std::vector<at::Tensor> outputs;
    trainer.predict(*loader(5, 4, false),
                    [&](const Batch&, const NamedTensors& out) { outputs.push_back(find(out, "prediction")); });
    return outputs;
  }

  const TempDir work_dir_;
  const std::string folder_ = work_dir_ / "predictions";
};

TEST_P(PredictionWriter, WritesOneFileForAPass) {
  const auto writer = trainer({}, work_dir_.path().string());
  writer->step(testing::mlp_task().batch(4, 1));
  const at::Tensor expected = at::cat(predict(*writer));
  EXPECT_THAT(names_in(folder_), ElementsAre("predictions.safetensors"));
  const NamedTensors written = read_safetensors(folder_ + "/predictions.safetensors");
  ASSERT_EQ(written.size(), 1U);
  EXPECT_EQ(written[0].first, "prediction");
  EXPECT_TRUE(testing::same_bits(written[0].second, expected));
}

TEST_P(PredictionWriter, WritesAFileForEachBatch) {
  const auto writer = trainer({.per_batch = true, .with_inputs = true}, work_dir_.path().string());
  std::filesystem::create_directories(folder_);
  for (const char* old : {"batch-000001.safetensors", "batch-000099.safetensors", "notes.txt"})
    work_dir_.write(std::string("predictions/") + old, "x");
  const std::vector<at::Tensor> expected = predict(*writer);
  EXPECT_THAT(names_in(folder_), ElementsAre("batch-000000.safetensors", "batch-000001.safetensors",
                                             "batch-000002.safetensors", "notes.txt"));
  const Batch samples = testing::mlp_task().batch(5, 9);
  for (int64_t i = 0; i < 3; ++i) {
    const NamedTensors written = read_safetensors(folder_ + "/batch-00000" + std::to_string(i) + ".safetensors");
    EXPECT_TRUE(testing::same_bits(find(written, "prediction"), expected[i]));
    EXPECT_TRUE(testing::same_bits(find(written, "input.input"), samples["input"].narrow(0, 2 * i, i == 2 ? 1 : 2)));
    EXPECT_TRUE(testing::same_bits(find(written, "input.target"), samples["target"].narrow(0, 2 * i, i == 2 ? 1 : 2)));
  }
}

// One file for the pass stays that of the pass before; of the batches those are there that were through.
TEST_P(PredictionWriter, LeavesNoHalfFileBehindAFailure) {
  for (const bool per_batch : {false, true}) {
    const TempDir work_dir;
    const std::string folder = work_dir / "predictions";
    const auto writer = trainer({.format = "both", .per_batch = per_batch}, work_dir.path().string());
    predict(*writer);
    writer->on(HookPoint::kBeforePredictIter, [](TrainContext& context) {
      if (context.evaluation.batch_index == 2) throw std::runtime_error("planned");
    });
    expect_error<std::runtime_error>([&] { predict(*writer); }, {"planned"});
    const Names whole = {"predictions.jsonl", "predictions.safetensors"};
    const Names batches = {"batch-000000.safetensors", "batch-000001.safetensors", "predictions.jsonl"};
    EXPECT_EQ(names_in(folder), per_batch ? batches : whole);
    const NamedTensors read = read_safetensors(folder + "/" + names_in(folder)[1]);
    EXPECT_EQ(find(read, "prediction").size(0), per_batch ? 2 : 5);
  }
}

DUET_IN_BOTH_MODES(PredictionWriter);

// Batches with given outputs, without a trainer.
class Outputs : public ::testing::Test {
 protected:
  void batch(PredictionWriterHook& hook, const NamedTensors& outputs) {
    run.context.evaluation.outputs = &outputs;
    hook.after_predict_iter(run.context);
    ++run.context.evaluation.batch_index;
  }
  TempDir folder;
  FakeRun run;
};

TEST_F(Outputs, AreJoinedOrStacked) {
  PredictionWriterHook hook({.folder = folder.path().string(), .keys = {"mask", "score"}});
  hook.before_predict_epoch(run.context);
  const at::Tensor kept = at::full({2, 3}, 1, at::kLong);
  batch(hook, {{"score", at::scalar_tensor(0.5)}, {"rest", at::ones({1})}, {"mask", kept}});
  kept.fill_(7);  // the model's own memory, which the next batch changes
  batch(hook,
        {{"score", at::scalar_tensor(0.25)}, {"rest", at::ones({4})}, {"mask", at::full({3, 1}, 2, at::kLong).t()}});
  hook.after_predict_epoch(run.context);
  const NamedTensors written = read_safetensors(folder / "predictions.safetensors");
  EXPECT_EQ(written.size(), 2U);
  EXPECT_TRUE(at::equal(find(written, "score"), at::tensor({0.5, 0.25}, at::kFloat)));
  EXPECT_TRUE(at::equal(find(written, "mask"), at::tensor({1, 1, 1, 1, 1, 1, 2, 2, 2}, at::kLong).view({3, 3})));
}

TEST_F(Outputs, ThatDoNotFitAreRefused) {
  const auto refused = [&](PredictionWriterHookOptions options, const NamedTensors& first, const NamedTensors& second,
                           const std::vector<std::string>& parts) {
    options.folder = folder.path().string();
    PredictionWriterHook hook(options);
    hook.before_predict_epoch(run.context);
    batch(hook, first);
    expect_error<Error>([&] { batch(hook, second); }, parts);
  };
  const Batch samples{{"input", at::zeros({2, 1})}};
  run.context.evaluation.batch = &samples;
  const at::Tensor good = at::ones({2, 3});
  refused({}, {{"mask", good}}, {{"mask", at::ones({2, 4})}}, {"'mask'", "[2, 4]", "[2, 3]", "per_batch"});
  refused({}, {{"mask", good}}, {{"mask", at::ones({2, 3}, at::kLong)}}, {"Long"});
  refused({}, {{"mask", good}}, {{"other", good}}, {"other outputs than the first"});
  refused({.keys = {"logit"}}, {{"logit", good}}, {{"mask", good}}, {"'logit'", "one of mask", "keys"});
  refused({.format = "jsonl"}, {{"prediction", good}}, {{"prediction", at::ones({2, 3, 4})}}, {"[samples, classes]"});
}

// Knows its samples and classes.
class NamedData : public DataSource {
 public:
  explicit NamedData(Names classes) : classes_(std::move(classes)) {}
  void start_epoch(int64_t) override {}
  std::optional<Batch> next() override { return std::nullopt; }
  int64_t batches_per_epoch() const override { return 0; }
  std::string sample_name(int64_t id) const override { return id == 9 ? "" : "a/" + std::to_string(id) + ".png"; }
  Names class_names() const override { return classes_; }
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict&) override {}

 private:
  Names classes_;
};

class Lines : public Outputs {
 protected:
  // Of a pass over one batch.
  std::vector<nlohmann::json> lines(const at::Tensor& scores, const Batch& samples, DataSource* data) {
    PredictionWriterHook hook({.folder = folder.path().string(), .format = "jsonl"});
    run.context.evaluation.batch = &samples;
    run.context.evaluation.data = data;
    hook.before_predict_epoch(run.context);
    batch(hook, {{"prediction", scores}});
    hook.after_predict_epoch(run.context);
    std::vector<nlohmann::json> found;
    std::ifstream file(folder / "predictions.jsonl");
    for (std::string text; std::getline(file, text);) found.push_back(nlohmann::json::parse(text));
    return found;
  }
  const at::Tensor scores_ = at::tensor({1.0, 3.0, 2.0, 0.0}).view({2, 2});
};

TEST_F(Lines, NameSamplesAndClasses) {
  Batch samples{{"image", at::zeros({2, 1})}};
  samples.set_sample_ids({7, 9});
  NamedData data({"ant", "bee"});
  const auto found = lines(scores_, samples, &data);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].at("name"), "a/7.png");
  EXPECT_EQ(found[0].at("class"), 1);
  EXPECT_EQ(found[0].at("class_name"), "bee");
  EXPECT_EQ(found[0].at("score"), 3);
  EXPECT_NEAR(found[0].at("probability").get<double>(), 1 / (1 + std::exp(-2.0)), 1e-12);
  NamedData counts({"0", "1", "2"});
  EXPECT_EQ(lines(scores_.narrow(1, 0, 1), samples, &counts)[0].at("value"), 1);  // no number is three scores
  EXPECT_FALSE(found[1].contains("name"));
  EXPECT_EQ(found[1].at("class_name"), "ant");
}

// By the targets beside them: what of the first sample's line is written, and what its probability is.
TEST_F(Lines, SayWhatTheOutputsMean) {
  const at::Tensor input = at::zeros({2, 1}), classes = at::zeros({2}, at::kLong);
  const at::Tensor pair = at::tensor({-2.0, 3.0}).view({2, 1}),
                   shares = at::tensor({0.25, 0.75, 0.5, 0.5}).view({2, 2});
  struct Case {
    Batch samples;
    at::Tensor scores;
    nlohmann::json line;
    double probability = -1;  // of the second sample
  };
  const std::vector<Case> cases = {
      {{{"input", input}, {"target", classes}}, pair, {{"class", 0}}, 1 / (1 + std::exp(-3.0))},  // one logit
      {{{"input", input}, {"target", classes}}, scores_, {{"class", 1}}, 1 / (1 + std::exp(-2.0))},
      {{{"input", input}, {"target", classes}}, shares, {{"probability", 0.75}}, 0.5},  // they are that already
      {{{"input", input}, {"target", classes}}, at::ones({2, 1}), {{"class", 1}}, 1 / (1 + std::exp(-1.0))},
      {{{"input", input}, {"target", at::zeros({2})}}, pair, {{"value", -2.0}}},
      {{{"input", input}, {"target", at::zeros({2})}}, pair.flatten(), {{"value", -2.0}}},
      {{{"input", input}, {"target", at::zeros({2, 2}, at::kLong)}}, scores_, {{"values", {1.0, 3.0}}}},
      {{{"input", input}, {"target", at::zeros({2, 2})}}, scores_, {{"values", {1.0, 3.0}}}},
      {{{"input", input}}, scores_, {{"values", {1.0, 3.0}}}}};
  for (const Case& one : cases) {
    const auto found = lines(one.scores, one.samples, nullptr);
    SCOPED_TRACE(found[0].dump());
    for (const auto& [key, value] : one.line.items()) EXPECT_EQ(found[0].at(key), value);
    const bool is_class = one.probability >= 0;
    for (const char* key : {"class", "score", "probability"}) EXPECT_EQ(found[0].contains(key), is_class) << key;
    if (is_class) {
      EXPECT_NEAR(found[1].at("probability").get<double>(), one.probability, 1e-12);
    }
  }
}

}  // namespace
}  // namespace duet
