#include <filesystem>
#include <memory>
#include <gtest/gtest.h>
#include "tests/cli/program_call.h"
#include "tests/support/expect_error.h"
#include "tests/support/scoped_variable.h"

// Whatever is wrong with its words, config, data or checkpoint, the program ends with the right exit code and a message
// that names what is at fault. What the parser of configs and the readers of files refuse has tests beside them: here
// is what only the whole program can find out, and one case of each kind of the rest.

namespace duet {
namespace {

using testing::run_program;
using Words = std::vector<std::string>;

constexpr int kConfig = 2, kData = 3, kCheckpoint = 4, kDiverged = 5;

struct Refused {
  Words words;
  int code;
  Words parts;  // of the message
};

// What no user may ever see: traces and assertions of libraries, places in our sources.
void expect_no_internals(const std::string& text) {
  for (const char* part : {"frame #", "Exception raised from", "INTERNAL ASSERT", "what():", ".cpp:"})
    EXPECT_EQ(text.find(part), std::string::npos) << part << " is in: " << text;
}

class Refusals : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { folder_ = std::make_unique<testing::ProgramFolder>(); }
  static void TearDownTestSuite() { folder_.reset(); }

  static void expect(const std::vector<Refused>& cases) {
    for (const auto& [words, code, parts] : cases) {
      SCOPED_TRACE(::testing::PrintToString(words));
      const testing::Ran ran = run_program(words);
      EXPECT_EQ(ran.code, code) << ran.text;
      expect_contains(ran.text, parts);
      expect_no_internals(ran.text);
      EXPECT_TRUE(code == 0 || ran.errors.find("error: ") != std::string::npos ||
                  ran.errors.find("Run with --help") != std::string::npos)
          << ran.text;
    }
  }

  static std::unique_ptr<testing::ProgramFolder> folder_;
};

std::unique_ptr<testing::ProgramFolder> Refusals::folder_;

TEST_F(Refusals, OfWords) {
  expect({
      {{}, kConfig, {"A subcommand is required"}},
      {{"trian", "base.yaml"}, kConfig, {"found no command 'trian'", "did you mean 'train'"}},
      {{"train"}, kConfig, {"CONFIG is required"}},
      {{"train", "base.yaml", "--fast"}, kConfig, {"not expected: --fast"}},
      {{"train", "base.yaml", "--lr", "0.1"}, kConfig, {"not expected: ", "--lr", "Run with --help"}},
      {{"train", "base.yaml", "lr=0.1"}, kConfig, {"command line: unknown key 'lr' in the config", "known: "}},
      {{"train", "base.yaml", "--mode", "fast"}, kConfig, {"--mode: fast not in"}},
      {{"compare", "base.yaml", "--steps", "0"}, kConfig, {"--steps: "}},
      {{"train", "base.yaml", "--json", "data/images/x"}, kConfig, {"cannot write 'data/images/x'", "change --json"}},
      {{"train", "base.yaml", "work_dir=full", "--json", "/dev/full"}, 1, {"writing '/dev/full' failed"}},
      {{"help", "trainr"}, kConfig, {"found no key or type 'trainr'", "did you mean 'trainer'"}},
      {{"help", "trainer"}, 0, {"max_steps", "integer, at least 0"}},
      {{"help", "data.val.masks"}, 0, {"ImageFolder.masks"}},
      {{"help", "report"}, 0, {"--output FILE"}},
      {{"help", "AdamW"}, 0, {"type AdamW:", "list of numbers, in [0, 1); default [0.9, 0.999]"}},
      {{"doctor"}, 0, {"cuda"}},
      {{"launch", "-n", "2"}, kConfig, {"expected duet launch -n N"}},
      {{"launch", "-n", "0", "train", "base.yaml"}, kConfig, {"expected duet launch -n N"}},
      {{"launch", "-n", "2", "predict", "base.yaml"}, kConfig, {"expected duet launch -n N"}},
      {{"train", "base.yaml", "--rank", "0"}, kConfig, {"--rank without --world-size"}},
  });
  for (const char* command : {"train", "eval", "compare"}) {
    expect({
        {{command, "nowhere.yaml"}, kConfig, {"cannot open 'nowhere.yaml'"}},
        {{command, "."}, kConfig, {"cannot read '.'", "expected a YAML file"}},
        {{command, "base.yaml", "sed=3"}, kConfig, {"unknown key 'sed' in the config", "did you mean 'seed'"}},
    });
  }
}

TEST_F(Refusals, OfLaunches) {
  const ScopedVariable rank("RANK", "0");
  expect({{{"train", "base.yaml"}, kConfig, {"found RANK without WORLD_SIZE"}}});  // launch_test.cpp has the others
  const ScopedVariable size("WORLD_SIZE", "2");
  for (const char* command : {"predict", "compare"})
    expect({{{command, "base.yaml"}, kConfig, {"runs in one process"}}});
}

// A value of base.yaml that is another, and what is said of it.
TEST_F(Refusals, OfConfigsThatDoNotFitTheirData) {
  const std::string text = "data={train: {type: Text, path: data/text, context: 8}}";
  const auto gpt = [](const std::string& keys) {
    return "model={type: Gpt, n_layer: 1, n_head: 1, n_embd: 8" + keys + "}";
  };
  const std::vector<std::pair<Words, std::pair<int, Words>>> cases = {
      {{"data=null"}, {kConfig, {"data.train is missing"}}},
      {{"trainer=null"}, {kConfig, {"trainer.max_steps and max_epochs are both missing"}}},
      {{"trainer={max_epochs: 1}", "data.train.sampler=infinite"}, {kConfig, {"an infinite sampler has no epochs"}}},
      {{"data.train.splt=val"}, {kConfig, {"did you mean 'split'"}}},
      {{"model.type=SmallCn"}, {kConfig, {"did you mean 'SmallCnn'"}}},
      {{"model.num_classes=5"},
       {kConfig, {"model.num_classes is 5, but data.train has labels up to 9", "at least 10"}}},
      {{"model.image_size=30"}, {kConfig, {"'image' of shape [16, 1, 28, 28]", "expected [N, 1, 30, 30]; set model"}}},
      {{"model.in_channels=3"}, {kConfig, {"expected [N, 3, 28, 28]; set model"}}},
      {{"model={type: Mlp, in_features: 30}"}, {kConfig, {"[16, 1, 28, 28]", "set model.in_features to 784"}}},
      {{"data.train.batch_size=100", "data.train.drop_last=true"}, {kConfig, {"64 samples", "batch_size 100"}}},
      {{"evaluator=[{type: F1, num_classes: 5}]"}, {kConfig, {"command line: evaluator.0: ", "set num_classes: 10"}}},
      {{"trainer.limit_val_batches=0.01"}, {kConfig, {"limit_val_batches is 0.01 of 2 batches, which is not one"}}},
      {{"custom_hooks=[{type: HistogramHook, patterns: [nowhere]}]"},
       {kConfig, {"'nowhere', which fits no parameter"}}},
      {{text}, {kData, {"no tensor 'image'", "holds: input, target"}}},
      {{text, "evaluator=null", gpt(", context: 4")}, {kConfig, {"shape [1, 8]", "set model.context"}}},
      {{text, "evaluator=null", gpt(", context: 8"), "data.val={type: Text, path: data/other_text, context: 8}"},
       {kConfig, {"data.val: ", "'data/other_text': found byte", "take a split of that file"}}},
      {{"evaluator=null", gpt(", context: 8")}, {kConfig, {"model.vocab_size is 0"}}},
      {{"data.train={type: FashionMnist, root: data/nowhere}"}, {kData, {"no folder 'data/nowhere'", "or set 'root'"}}},
      {{"data.train.images=data/missing"}, {kData, {"cannot open 'data/missing'"}}},
      {{"data.train.images=data/cut.gz"}, {kData, {"'data/cut.gz' cannot be used: found damaged data"}}},
      {{"data.val.labels=data/label_10"}, {kData, {"labels 'data/label_10': found label 10 at index 5"}}},
      {{"data.test={type: Text, path: data/nowhere}"}, {kData, {"data.test.path is 'data/nowhere'"}}},
      {{"data.predict={type: FashionMnist, limit: many}"}, {kConfig, {"data.predict.limit is 'many'"}}},
      {{"data.train={type: Safetensors, path: data/images}"}, {kData, {"'data/images' cannot be used: its header"}}},
      {{"data.train={type: Safetensors, path: data/bad_label.safetensors, batch_size: 8, shuffle: false}"},
       {kData, {"got class 12", "expected 0 to 9", "num_classes to 13"}}},
      {{"model={type: torchscript, path: data/images}"}, {kConfig, {"'data/images' is not a TorchScript archive"}}},
      {{"model={type: Mlp, in_features: 2147483648, hidden: [100000000]}"}, {1, {"out of memory: ", "batch or model"}}},
      {{"work_dir=data/images"}, {kConfig, {"cannot write 'data/images'", "change work_dir"}}},
      {{"work_dir=/proc/run"}, {kConfig, {"cannot write '/proc/run'", "change work_dir"}}},
      {{"default_hooks.logger.file=data/images/x.jsonl"}, {kConfig, {"data/images/x.jsonl"}}},
      {{"optim_wrapper.optimizer.lr=1e30"}, {kDiverged, {"not finite"}}},
      {{"--dry-run", "--resume", "auto"}, {kConfig, {"excludes"}}},
      {{"--dry-run", "data.val.labels=data/label_10"}, {kData, {"label 10"}}},
  };
  for (const auto& [overrides, ending] : cases) {
    for (const std::string mode : {"eager", "graph"}) {
      Words words = {"train", "base.yaml", "work_dir=run", "mode=" + mode};
      words.insert(words.end(), overrides.begin(), overrides.end());
      expect({{words, ending.first, ending.second}});
    }
  }
  expect({{{"compare", "base.yaml", "model.image_size=30"}, kConfig, {"expected [N, 1, 30, 30]; set model"}}});
}

TEST_F(Refusals, OfCheckpoints) {
  ASSERT_EQ(run_program({"train", "base.yaml", "work_dir=good", "trainer.max_steps=6"}).code, 0);
  const auto resume = [](const Words& more) {
    Words words = {"train", "base.yaml", "work_dir=other", "--resume", "good/checkpoints"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect({
      {{"inspect", "nowhere"}, kCheckpoint, {"'nowhere' does not exist; name a folder"}},
      {{"inspect", "base.yaml"}, kCheckpoint, {"'base.yaml' is a file, expected a folder"}},
      {{"inspect", "data"}, kCheckpoint, {"'data' holds neither manifest.json nor folders step-N"}},
      {{"train", "base.yaml", "work_dir=none", "--resume", "nowhere"}, kCheckpoint, {"'nowhere' does not exist"}},
      {{"eval", "base.yaml", "work_dir=none"}, kCheckpoint, {"no checkpoint in 'none/checkpoints'; train first"}},
      {{"eval", "base.yaml", "work_dir=good", "--checkpoint", "best"}, kCheckpoint, {"no best checkpoint in"}},
      {{"eval", "base.yaml", "work_dir=good", "model.channels=[8]"},
       kCheckpoint,
       {"of another model", "conv1.weight (Float[4, 1, 3, 3] there, Float[8, "}},
      {resume({"model={type: Mlp}"}),
       kCheckpoint,
       {"missing there: hidden1.weight", "unknown to the model: ", "conv1.weight"}},
      {resume({"optim_wrapper.optimizer={type: SGD}"}), kCheckpoint, {"optimizer's state does not fit"}},
      {resume({"data.train.limit=30", "trainer.max_steps=8"}), kCheckpoint, {"30 samples, expected 64"}},
  });
  const auto cut = [](const std::string& step) {
    std::filesystem::resize_file("good/checkpoints/" + step + "/model.safetensors", 1000);
  };
  cut("step-6");
  expect({{{"inspect", "good/checkpoints/step-6"}, kCheckpoint, {"step-6/model.safetensors"}},
          {{"eval", "base.yaml", "work_dir=good"}, 0, {"passing over it", "step-4"}}});
  cut("step-4");
  cut("step-2");
  const Words none = {"none of the 3 checkpoints"};
  expect({{{"inspect", "good/checkpoints"}, kCheckpoint, none},
          {{"eval", "base.yaml", "work_dir=good"}, kCheckpoint, none},
          {{"train", "base.yaml", "work_dir=good", "--resume", "auto"}, kCheckpoint, none}});
}

TEST_F(Refusals, OfWeightsToStartFrom) {
  ASSERT_EQ(run_program({"train", "base.yaml", "work_dir=weights"}).code, 0);
  ASSERT_EQ(run_program({"export", "weights", "good.pt"}).code, 0);
  const std::string samples = std::filesystem::path(__FILE__).parent_path().parent_path() / "io/pt_files";
  const auto from = [](const std::string& keys) { return "load_from={path: good.pt, " + keys + "}"; };
  const std::vector<std::pair<std::string, std::pair<int, Words>>> cases = {
      {"load_from=nowhere.pt",
       {kCheckpoint, {"'nowhere.pt': ", "name a checkpoint folder, a safetensors file or a file"}}},
      {"load_from=/dev/null", {kCheckpoint, {"not a regular file", "'/dev/null'"}}},
      {"load_from=" + samples + "/forbidden.pt", {kCheckpoint, {"asks for 'posix.system'", "nothing of it was run"}}},
      {"load_from=" + samples + "/script.pt", {kCheckpoint, {"TorchScript program", "type: torchscript"}}},
      {"load_from=data/bad_label.safetensors", {kCheckpoint, {"none of them fits the model", "unknown to the model"}}},
      {from("which: ema"), {kCheckpoint, {"key 'ema', expected 'model' or one of: nothing"}}},
      {"load_from={path: weights, which: swa}",
       {kCheckpoint, {"'swa', expected 'model' or one of its averages: nothing"}}},
      {from("prefix: backbone"),
       {kCheckpoint, {"no name begins with 'backbone.'", "expected one of: conv1, head, norm1"}}},
      {from(R"(revise_keys: {'^\w+': x})"), {kCheckpoint, {"both become 'x."}}},
      {from("revise_keys: {'(': x}"), {kConfig, {"revise_keys has '(', expected a regular expression"}}},
      {from("revise_keys: [a, b]"), {kConfig, {"load_from.revise_keys", "expected a map"}}},
      {from("strikt: true"), {kConfig, {"unknown key 'strikt' in load_from", "did you mean 'strict'"}}},
      {"load_from={strict: true}", {kConfig, {"load_from.path"}}},
  };
  for (const auto& [load_from, ending] : cases)
    expect({{{"train", "base.yaml", "work_dir=run", load_from}, ending.first, ending.second}});
  expect({{{"train", "base.yaml", "work_dir=run", from("strict: true"), "model.channels=[8]"},
           kCheckpoint,
           {"of another model: 2 of 8 tensors", "conv1.weight (Float[4, 1, 3, 3] there, Float[8, 1, 3, 3]"}},
          {{"export", "good.pt", "out.h5"}, kConfig, {"'out.h5', expected one that ends with .safetensors, .pt"}},
          {{"export", "good.pt", "nowhere/out.pt"}, kCheckpoint, {"nowhere/out.pt", "No such file"}}});
}

}  // namespace
}  // namespace duet
