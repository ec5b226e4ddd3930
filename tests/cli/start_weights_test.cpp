#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "tests/cli/program_call.h"
#include "tests/support/expect_error.h"

// Weights that a run starts from, of every file that holds them.

namespace duet {
namespace {

using testing::Ran;
using testing::run_program;
using Words = std::vector<std::string>;

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
