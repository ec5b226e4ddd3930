#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "tests/cli/program_call.h"
#include "tests/support/expect_error.h"
#include "tests/support/scoped_variable.h"

// The config that a run leaves behind gives the same run again, without the bases, variables of the environment and
// overrides that it was made of. Texts of the environment alone, which may be secrets, stand in it by name.

namespace duet {
namespace {

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

}  // namespace
}  // namespace duet
