#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_file.h"
#include "core/task.h"
#include "io/pt_file.h"
#include "io/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/pt_files.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

// weight [2, 3] and bias [2], a buffer and BatchNorm's counter; all -1.
class FourTensors : public Task {
 public:
  NamedTensors named_parameters() const override { return {{"weight", weight_}, {"bias", bias_}}; }
  NamedTensors named_buffers() const override { return {{"mean", mean_}, {"num_batches_tracked", count_}}; }
  void train(bool) override {}
  void to(at::Device) override {}
  StepOutput training_step(const Batch&) override { return {}; }

 private:
  at::Tensor weight_ = at::full({2, 3}, -1.0f).set_requires_grad(true),
             bias_ = at::full({2}, -1.0f).set_requires_grad(true);
  at::Tensor mean_ = at::full({2}, -1.0f), count_ = at::full({}, -1, at::kLong);
};

StateDict fitting() {
  StateDict weights;
  weights.set("weight", at::arange(6, at::kFloat).view({2, 3}));
  weights.set("bias", at::arange(2, at::kFloat));
  weights.set("mean", at::zeros({2}));
  weights.set("num_batches_tracked", at::zeros({}, at::kLong));
  return weights;
}

StateDict with_prefix(const std::string& prefix, const StateDict& weights) {
  StateDict result;
  result.put(prefix, weights);
  return result;
}

TEST(ReadWeights, ReadsCheckpointsSafetensorsAndPythonsFilesAlike) {
  const TempDir folder;
  const StateDict weights = fitting();
  StateDict state = with_prefix("model", weights);
  StateDict average = weights;
  average.set("bias", at::full({2}, 9.0f));
  state.put("hooks.ema.weights", average);
  state.set("trainer.step", int64_t{4});
  const std::string checkpoint = CheckpointStore(folder / "checkpoints").save(4, state);
  write_weights(folder / "a.safetensors", weights);
  write_weights(folder / "a.pt", weights);
  write_weights(folder / "a.pth", weights);
  for (const std::string& path : {checkpoint, folder / "checkpoints", checkpoint + "/model.safetensors",
                                  folder / "a.safetensors", folder / "a.pt", folder / "a.pth"}) {
    SCOPED_TRACE(path);
    expect_same_state(weights, read_weights({path}));
  }
  expect_same_state(average, read_weights({checkpoint, "ema"}));
  expect_same_state(average, read_weights({checkpoint + "/ema.safetensors"}));
  expect_error<CheckpointError>([&] { read_weights({checkpoint, "swa"}); },
                                {"'swa'", "'model' or one of its averages: ema"});
}

TEST(ReadWeights, ReadsAllShardsOfAModel) {
  const StateDict all = fitting();
  StateDict first, second;
  for (const auto& [name, tensor] : all.tensors()) (name < "mean" ? first : second).set(name, tensor);
  for (const std::string name :
       {"model-0000N-of-00002.safetensors", "pytorch_model-0000N-of-00002.bin", "m_0N-of-02.pt"}) {
    SCOPED_TRACE(name);
    const TempDir folder;
    const auto path = [&](char number) {
      std::string shard = name;
      shard[shard.find('N')] = number;
      return folder / shard;
    };
    write_weights(path('1'), first);
    expect_error<CheckpointError>([&] { read_weights({path('1')}); }, {path('2'), "does not exist", "fetch it"});
    write_weights(path('2'), second);
    for (const char number : {'1', '2'}) expect_same_state(fitting(), read_weights({path(number)}));
    write_weights(path('2'), first);
    expect_error<CheckpointError>([&] { read_weights({path('1')}); }, {path('2'), "'bias' in another part"});
    expect_error<CheckpointError>([&] { read_weights({path('3')}); }, {path('3'), "it does not exist"});
    write_weights(path('0'), second);  // others count from 0
    expect_same_state(fitting(), read_weights({path('1')}));
  }
  const TempDir folder;  // no shards: a file called by its epoch
  for (const std::string name : {"epoch-1-of-3.pt", "epoch-1-of-10.pt", "model-00001-of.pt"}) {
    write_weights(folder / name, fitting());
    expect_same_state(fitting(), read_weights({folder / name}));
  }
}

TEST(ReadWeights, NamesInAFileCannotForgeALine) {
  const TempDir folder;
  StateDict odd;
  odd.set("a\nb.c", at::ones({1}));
  write_weights(folder / "a.pt", odd);
  expect_error<CheckpointError>([&] { read_weights({.path = folder / "a.pt", .prefix = "x"}); }, {"a\\x0ab"});
  const std::vector<NameRule> rules{{".*", "x"}};
  odd.set("d\ne", at::ones({1}));
  write_weights(folder / "a.pt", odd);
  expect_error<CheckpointError>([&] { read_weights({.path = folder / "a.pt", .revise_keys = rules}); }, {"\\x0a"});
  FourTensors task;
  expect_error<CheckpointError>([&] { load_matching_weights(task, odd); }, {"unknown to the model: a\\x0ab.c"});
}

TEST(ReadWeights, FindsTheStateDictInATrainingCheckpoint) {
  const StateDict wrapped = read_weights({python_file("wrapped.pt")});
  EXPECT_EQ(wrapped.tensors().size(), 2u);
  expect_same_tensor("weight", wrapped.tensor("weight"), fitting().tensor("weight"));
  const StateDict mmengine = read_weights({python_file("mmengine.pth")});
  EXPECT_EQ(mmengine.tensors().size(), 2u);
  expect_same_tensor("weight", mmengine.tensor("weight"), fitting().tensor("weight"));
  expect_same_state(mmengine, read_weights({python_file("mmengine.pth"), "ema"}));
  EXPECT_TRUE(read_weights({python_file("mmengine.pth"), "ema_state_dict"}).has("module.bias"));
  expect_error<CheckpointError>([&] { read_weights({python_file("mmengine.pth"), "teacher"}); },
                                {"'teacher'", "ema_state_dict, optimizer, state_dict"});
}

TEST(ReadWeights, TakesOffWhatWrappersPutInFrontOfEveryName) {
  EXPECT_TRUE(read_weights({python_file("parallel.pt")}).has("weight"));
  const TempDir folder;
  write_weights(folder / "a.pt", with_prefix("module._orig_mod.module", fitting()));
  expect_same_state(fitting(), read_weights({folder / "a.pt"}));
  StateDict some = fitting();
  some.set("module.extra", at::ones({1}));
  write_weights(folder / "b.pt", some);
  expect_same_state(some, read_weights({folder / "b.pt"}));
}

TEST(ReadWeights, RevisesNamesAndTakesThoseUnderAPrefix) {
  const TempDir folder;
  StateDict state = with_prefix("module.backbone", fitting());
  state.set("module.head.weight", at::ones({1}));
  write_weights(folder / "a.safetensors", state);
  WeightsSource source{folder / "a.safetensors"};
  source.prefix = "backbone";
  expect_same_state(fitting(), read_weights(source));
  source.prefix = "";
  source.revise_keys = std::vector<NameRule>{{R"(^module\.)", ""}, {R"(^(\w+)\.(weight)$)", R"(\g<2>.\1$)"}};
  const StateDict revised = read_weights(source);
  EXPECT_TRUE(revised.has("weight.backbone$"));
  EXPECT_TRUE(revised.has("weight.head$"));
  EXPECT_TRUE(revised.has("backbone.bias"));
  source.revise_keys = std::vector<NameRule>{{"weight|bias", "x"}};
  expect_error<CheckpointError>([&] { read_weights(source); }, {"both become 'module.backbone.x'"});
  source.revise_keys = std::vector<NameRule>{{std::string(400'000, '('), ""}};
  expect_error<ConfigError>([&] { read_weights(source); }, {"400000 characters", "at most 1000"});
  source.revise_keys = std::vector<NameRule>{{"(", ""}};
  expect_error<ConfigError>([&] { read_weights(source); }, {"'('", "regular expression"});
  source.revise_keys.reset();
  source.prefix = "neck";
  expect_error<CheckpointError>([&] { read_weights(source); }, {"'neck.'", "backbone, head"});
}

TEST(ReadWeights, NamesFileAndWayOut) {
  const TempDir folder;
  expect_error<CheckpointError>([&] { read_weights({folder / "none.pt"}); }, {folder / "none.pt", "does not exist"});
  expect_error<CheckpointError>([&] { read_weights({folder.path()}); }, {"neither manifest.json nor folders step-N"});
  expect_error<CheckpointError>([&] { read_weights({python_file("forbidden.pt")}); }, {"forbidden.pt", "posix.system"});
  expect_error<CheckpointError>([&] { read_weights({python_file("numpy_beside.pt")}); },
                                {"'score'", "only Python can hold"});
  write_safetensors(folder / "empty.safetensors", {});
  expect_error<CheckpointError>([&] { read_weights({folder / "empty.safetensors"}); }, {"holds no tensors"});
  expect_error<ConfigError>([&] { write_weights(folder / "a.h5", fitting()); }, {"a.h5", ".safetensors, .pt"});
  expect_error<CheckpointError>([&] { write_weights(folder / "none/a.pt", fitting()); }, {folder / "none/a.pt"});
}

TEST(WeightsHash, IsOfNamesAndBits) {
  StateDict weights;
  weights.set("weight", at::full({2, 3}, 0.5f));
  weights.set("bias", at::zeros({2}));
  StateDict same;
  same.set("bias", at::zeros({2}));
  same.set("weight", at::full({3, 2}, 0.5f).t());
  EXPECT_EQ(weights_hash(weights), weights_hash(same));
  EXPECT_EQ(weights_hash(weights).size(), 32U);
  StateDict negative = same, renamed;
  negative.set("bias", -at::zeros({2}));
  renamed.set("offset", at::zeros({2}));
  renamed.set("weight", at::full({2, 3}, 0.5f));
  EXPECT_NE(weights_hash(weights), weights_hash(negative));
  EXPECT_NE(weights_hash(weights), weights_hash(renamed));
}

TEST(LoadMatchingWeights, ReportsWhatDoesNotFitAndLoadsTheRest) {
  FourTensors task;
  StateDict weights;
  weights.set("weight", at::zeros({3, 2}));
  weights.set("bias", at::arange(2, at::kDouble));
  weights.set("head.weight", at::zeros({1}));
  const WeightsReport report = load_matching_weights(task, weights);
  EXPECT_EQ(report.loaded, 1);
  EXPECT_EQ(report.missing, std::vector<std::string>{"mean"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"head.weight"});
  ASSERT_EQ(report.mismatched.size(), 1u);
  EXPECT_EQ(report.mismatched[0].found, "Float[3, 2]");
  EXPECT_EQ(report.text(),
            "1 of 4 tensors\n  missing there: mean\n  unknown to the model: head.weight\n"
            "  of another shape or type, not loaded: weight (Float[3, 2] there, Float[2, 3] in the model)\n"
            "  converted: bias (Double[2] there, Float[2] in the model)");
  expect_same_tensor("bias", task.named_parameters()[1].second, at::arange(2, at::kFloat));
  expect_same_tensor("weight", task.named_parameters()[0].second, at::full({2, 3}, -1.0f));
}

TEST(LoadMatchingWeights, ChangesNothingWhereItThrows) {
  FourTensors task;
  StateDict weights = fitting();
  weights.set("bias", at::zeros({3}));
  expect_error<CheckpointError>([&] { load_matching_weights(task, weights, /*strict=*/true); },
                                {"bias (Float[3] there, Float[2] in the model)", "strict: false"});
  StateDict converted = fitting();
  converted.set("bias", at::zeros({2}, at::kHalf));
  expect_error<CheckpointError>([&] { load_matching_weights(task, converted, /*strict=*/true); }, {"Half[2]"});
  StateDict integers;
  integers.set("bias", at::zeros({2}, at::kLong));
  expect_error<CheckpointError>([&] { load_matching_weights(task, integers); },
                                {"none of them fits", "bias (Long[2]", "prefix or revise_keys"});
  expect_same_tensor("weight", task.named_parameters()[0].second, at::full({2, 3}, -1.0f));
}

}  // namespace
}  // namespace duet
