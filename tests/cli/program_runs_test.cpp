#include <filesystem>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "cli/registry.h"
#include "core/task.h"
#include "tests/cli/program_call.h"
#include "tests/support/expect_error.h"
#include "tests/support/scoped_variable.h"

namespace duet {
namespace {

// What `duet compare` finds where two runs part.

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

// The config that a run leaves behind gives the same run again, without the bases, variables of the environment and
// overrides that it was made of. Texts of the environment alone, which may be secrets, stand in it by name.

using Words = std::vector<std::string>;

constexpr const char* kRunBase = R"(trainer: {max_steps: "${env:DUET_TEST_STEPS}", val_interval: 4}
optim_wrapper:
  optimizer: {type: AdamW, lr: 1.0e-3, betas: [0.9, 0.95]}
  clip_grad: {max_norm: 1.0}
param_scheduler: [{type: Linear, end: 2}]
default_hooks: {checkpoint: {interval: 4}, logger: {interval: 2}}
evaluator: [{type: Accuracy}]
device: cpu
)";
constexpr const char* kDataBase = R"(data:
  train: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: 16}
  val: {type: FashionMnist, images: data/images, labels: data/labels, batch_size: "${env:DUET_TEST_BATCH,32}"}
)";
constexpr const char* kCnn = R"(_base_: [bases/data.yaml, bases/run.yaml]
work_dir: runs/cnn_${env:DUET_TEST_NAME}
model: {type: SmallCnn, channels: [4], dropout: 0.2}
seed: 5
)";
constexpr const char* kMlp = R"(_base_: cnn.yaml
work_dir: "runs/mlp $${x}"
model: {_delete_: true, type: Mlp, hidden: [16], dropout: 0.1}
optim_wrapper:
  optimizer: {_delete_: true, type: SGD, lr: 0.05, momentum: 0.9, nesterov: true}
  clip_grad: null
  paramwise_cfg: {custom_keys: {hidden1.weight: {lr_mult: 0.5}}, bias_decay_mult: 0}
custom_hooks: [{type: EMAHook, momentum: 0.01}]
trainer: {accumulate: 2}
)";

// Losses, weights, mode and steps of a run.
nlohmann::json trained(Words words) {
  words.insert(words.begin(), "train");
  words.insert(words.end(), {"--json", "result.json"});
  const testing::Ran ran = testing::run_program(words);
  EXPECT_EQ(ran.code, 0) << ran.text;
  const nlohmann::json result = nlohmann::json::parse(read_bytes("result.json"));
  return {result["losses"], result["weights_hash"], result["mode"], result["steps"]};
}

TEST(Rerun, TheSavedConfigGivesTheSameRun) {
  const testing::ProgramFolder folder;
  std::filesystem::create_directory("bases");
  folder.files().write("bases/run.yaml", kRunBase);
  folder.files().write("bases/data.yaml", kDataBase);
  folder.files().write("cnn.yaml", kCnn);
  folder.files().write("mlp.yaml", kMlp);
  const ScopedVariable name("DUET_TEST_NAME", "a b");
  struct Case {
    std::string work_dir;
    Words words, parts;  // of the call, and of the saved config
  };
  for (const Case& c : {
           Case{"runs/cnn_a b",
                {"cnn.yaml"},
                {"max_steps: 6  # bases/run.yaml:1, env DUET_TEST_STEPS\n", "seed: 5  # cnn.yaml:4\n",
                 "batch_size: 32  # bases/data.yaml:3, env DUET_TEST_BATCH unset\n", "weight_decay: 0.01  # default\n",
                 "work_dir: \"runs/cnn_${env:DUET_TEST_NAME}\"  # cnn.yaml"}},
           Case{"runs/graph",
                {"cnn.yaml", "work_dir=runs/graph", "optim_wrapper.optimizer.betas.1=0.99", "model.channels.1=8",
                 "~optim_wrapper.clip_grad", "mode=graph", "param_scheduler.1={type: Cosine, begin: 2}"},
                {"- 0.99  # command line\n", "- 8  # command line\n", "mode: graph  # command line\n"}},
           Case{"runs/mlp ${x}",
                {"mlp.yaml"},
                {"nesterov: true  # mlp.yaml:5\n", "clip_grad: null  # mlp.yaml:6\n",
                 "hidden1.weight:", "work_dir: \"runs/mlp $${x}\"  # mlp.yaml:2\n"}},
       }) {
    nlohmann::json first;
    {
      const ScopedVariable steps("DUET_TEST_STEPS", "6");
      first = trained(c.words);
    }
    const std::string saved = c.work_dir + "/config.yaml";
    expect_contains(read_bytes(saved), c.parts);
    EXPECT_EQ(trained({saved}), first) << read_bytes(saved);
  }
}

TEST(Resume, TheJsonHasTheBestAndLastResultsOfTheWholeRun) {
  const testing::ProgramFolder folder;
  const auto metrics = [](Words words) {
    words.insert(words.end(), {"trainer.val_interval=1", "trainer.val_by_epoch=false"});
    trained(words);
    return nlohmann::json::parse(read_bytes("result.json"))["metrics"];
  };
  // What is learnt at first is forgotten: the best result is an early one.
  const std::string lr = "param_scheduler=[{type: Linear, start_factor: 1, end_factor: 1000, begin: 1, end: 8}]";
  const nlohmann::json whole = metrics({"base.yaml", "work_dir=whole", "trainer.max_steps=8", lr});
  metrics({"base.yaml", "work_dir=parts", "trainer.max_steps=4", lr});
  EXPECT_EQ(metrics({"base.yaml", "work_dir=parts", "trainer.max_steps=8", lr, "--resume", "auto"}), whole);
  EXPECT_LE(whole["best"]["loss"]["step"], 4);
}

// Weights that a run starts from, of every file that holds them.

using testing::Ran;
using testing::run_program;

// A model without buffers: a step at a learning rate of zero leaves all of it as it was.
Ran train(const Words& more) {
  Words words = {"train", "base.yaml", "model={type: Mlp}", "--json", "result.json"};
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words);
}

// The hash of the weights that one such step starts from and ends with.
std::string started_from(const std::string& load_from, const Words& more = {}) {
  Words words = {"work_dir=start", "trainer.max_steps=1", "optim_wrapper.optimizer.lr=0", "load_from=" + load_from};
  words.insert(words.end(), more.begin(), more.end());
  const Ran ran = train(words);
  EXPECT_EQ(ran.code, 0) << ran.text;
  expect_contains(ran.text, {"loaded weights from '", "': 4 of 4 tensors\n"});
  return nlohmann::json::parse(read_bytes("result.json"))["weights_hash"];
}

TEST(StartWeights, OfACheckpointAndOfAllFilesOfItAreTheSame) {
  const testing::ProgramFolder folder;
  ASSERT_EQ(train({"work_dir=mlp", "custom_hooks=[{type: EMAHook}]"}).code, 0);
  const std::string expected = nlohmann::json::parse(read_bytes("result.json"))["weights_hash"];
  for (const char* file : {"mlp.pt", "mlp.pth", "mlp.safetensors"})
    expect_contains(run_program({"export", "mlp/checkpoints", file}).text, {"wrote 4 tensors"});
  for (const char* path : {"mlp/checkpoints", "mlp/checkpoints/step-4", "mlp/checkpoints/step-4/model.safetensors",
                           "mlp.pt", "mlp.pth", "mlp.safetensors"})
    EXPECT_EQ(started_from(path), expected) << path;
  EXPECT_EQ(started_from("mlp.pt", {"mode=graph"}), expected);

  // The average, by either way; one that a hook keeps begins with what was loaded.
  ASSERT_EQ(run_program({"export", "mlp/checkpoints", "average.pt", "--weights", "ema"}).code, 0);
  const std::string average = started_from("average.pt");
  EXPECT_NE(average, expected);
  EXPECT_EQ(started_from("{path: mlp/checkpoints, which: ema}"), average);
  started_from("mlp.pt", {"custom_hooks=[{type: EMAHook}]"});
  ASSERT_EQ(run_program({"export", "start/checkpoints", "again.pt", "--weights", "ema"}).code, 0);
  EXPECT_EQ(read_bytes("again.pt"), read_bytes("mlp.pt"));
}

TEST(StartWeights, LoadWhatFitsAndAreNotUsedByAResume) {
  const testing::ProgramFolder folder;
  ASSERT_EQ(run_program({"train", "base.yaml", "work_dir=good"}).code, 0);
  Ran ran = run_program({"train", "base.yaml", "work_dir=more", "model.num_classes=12", "--load-from", "good"});
  expect_contains(ran.text, {"6 of 8 tensors", "not loaded: head.weight", "head.bias (Float[10] there, Float[12]"});
  const Words again = {"train", "base.yaml", "work_dir=again", "--resume", "auto", "--load-from", "good"};
  expect_contains(run_program(again).text, {"loaded weights"});
  Words longer = again;
  longer.push_back("trainer.max_steps=6");
  ran = run_program(longer);
  EXPECT_EQ(ran.code, 0) << ran.text;
  expect_contains(ran.text, {"resumed from", "step-4'", "load_from is not used"});
}

TEST(StartWeights, TiedOnesAreOneTensor) {
  const testing::ProgramFolder folder;
  const std::string tied = std::filesystem::path(__FILE__).parent_path().parent_path() / "io/pt_files/tied.pt";
  for (const char* file : {"tied.pt", "tied.safetensors"}) {
    expect_contains(run_program({"export", tied, file, "--json", "tied.json"}).text, {"wrote 2 tensors under 3 names"});
    EXPECT_EQ(nlohmann::json::parse(read_bytes("tied.json"))["tied"], nlohmann::json({{"head", "embedding"}}));
  }
}

}  // namespace
}  // namespace duet
