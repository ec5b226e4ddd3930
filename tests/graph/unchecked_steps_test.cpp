// What graph mode says of replays whose host code did not run.

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "hooks/logger_hook.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

namespace duet {
namespace {

using testing::batch_at;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::stderr_of;
using testing::TwoLayers;

// Steps of one model, whose loss depends on what the test changes between them.
struct Steps {
  explicit Steps(Check check, const std::string& mode = "graph", int64_t verify_interval = 0, double budget = 0.03) {
    seed_all(3);
    const GraphOptions graph{.check = check, .check_budget = budget, .verify_interval = verify_interval};
    trainer = testing::make_trainer(mode,
                                    make_task(net,
                                              [this](TwoLayers& own, const Batch& batch) {
                                                ++calls;
                                                if (throws) throw std::runtime_error("the user's own");
                                                return plain_loss(own, batch) * factor * scale;
                                              }),
                                    {}, graph);
  }
  void steps(int64_t count, int64_t size = 8) {
    for (int64_t n = 0; n < count; ++n) trainer->step(batch_at(n, size));
  }
  UncheckedSteps saved_in(const std::string& folder) {
    return *CheckpointStore::read_manifest(trainer->save(folder)).run.unchecked;
  }
  SignatureReport report() const { return dynamic_cast<GraphTrainer&>(*trainer).report().front(); }

  std::shared_ptr<TwoLayers> net = std::make_shared<TwoLayers>();
  double factor = 1;
  at::Tensor scale = torch::ones({});
  bool throws = false;
  int64_t calls = 0;
  std::unique_ptr<BaseTrainer> trainer;
};

TEST(UncheckedSteps, AreCountedWhateverIsFoundLater) {
  const TempDir folder;
  for (const auto& [check, unchecked] : {std::pair(Check::kEvery, 0), std::pair(Check::kOff, 10)}) {
    Steps run(check);
    run.steps(12);  // the first is eager, the second recorded
    EXPECT_EQ(run.saved_in(folder / "once").count, unchecked);
    EXPECT_EQ(run.saved_in(folder / "twice").count, unchecked)
        << "the code is the recorded one now, which checks no step";
    EXPECT_EQ(run.report().unchecked, unchecked);
    EXPECT_EQ(run.report().unchecked_in_a_row, unchecked);
  }
  Steps eager(Check::kEvery, "eager");
  eager.steps(12);
  EXPECT_EQ(to_text(eager.saved_in(folder / "eager")), "the host code of every step has run");
}

// A comparison with an eager run, here at replays 2, 4, 8 and 16, runs the host code as well.
TEST(UncheckedSteps, AreCountedBetweenTwoRunsOfTheHostCode) {
  const TempDir folder;
  Steps run(Check::kOff, "graph", /*verify_interval=*/1024);
  run.steps(26);
  const UncheckedSteps saved = run.saved_in(folder / "c");
  EXPECT_EQ(saved.count, 24 - 4);
  EXPECT_EQ(saved.in_a_row, 8);
  EXPECT_EQ(saved.confirmed, 18);
  EXPECT_THAT(to_text(saved), HasSubstr("20 replays did not run their host code, at most 8 in a row"));
}

TEST(UncheckedSteps, GoOnFromTheCheckpoint) {
  const TempDir folder;
  Steps first(Check::kOff);
  first.steps(12);
  const std::string path = first.trainer->save(folder / "c");
  for (const Check check : {Check::kEvery, Check::kOff}) {
    Steps second(check);
    second.steps(7);  // are not part of the run that goes on
    second.trainer->load(path);
    second.steps(4);
    EXPECT_EQ(second.saved_in(folder / "d").count, check == Check::kEvery ? 10 : 12) << "a load has it captured anew";
  }
}

// Over at each save, and found in the end: what was saved since the last check may be wrong.
TEST(UncheckedSteps, AChangeThatIsFoundMakesCheckpointsSuspect) {
  const TempDir folder;
  const std::string root = folder / "c";
  Steps run(Check::kOff, "graph", /*verify_interval=*/1024);
  run.steps(18);
  run.trainer->save(root);
  run.steps(4);
  run.factor = 2;
  run.steps(5);
  run.factor = 1;
  run.trainer->save(root);  // step 27
  run.steps(6);
  run.trainer->save(root);  // step 33
  run.factor = 2;
  const std::string said = stderr_of([&] { EXPECT_THROW(run.steps(1), GraphError); });  // replay 32 is compared
  EXPECT_THAT(said, HasSubstr("step-33, step-27"));
  for (const int64_t step : {18, 27, 33}) {
    const Manifest manifest = CheckpointStore::verify(root + "/" + CheckpointStore::folder_name(step));
    EXPECT_EQ(manifest.suspect.empty(), step == 18) << step;
  }
  Steps resumed(Check::kEvery);
  const std::string why = stderr_of([&] { EXPECT_EQ(resumed.trainer->load(root), root + "/step-18"); });
  EXPECT_THAT(why, HasSubstr("step-33' is suspect: [GraphTrainer] step ("));
}

TEST(UncheckedSteps, TheEndOfTheLogTells) {
  for (const auto& [check, text] : {std::pair(Check::kEvery, "the host code of every step has run"),
                                    std::pair(Check::kOff, "10 replays did not run their host code")}) {
    Steps run(check);
    const auto records = std::make_shared<std::vector<LogRecord>>();
    std::vector<std::unique_ptr<LogSink>> sinks;
    sinks.push_back(std::make_unique<testing::MemorySink>(records));
    run.trainer->add_hook(std::make_unique<LoggerHook>(LoggerHookOptions{}, std::move(sinks)));
    run.steps(12);
    run.trainer->finish();
    const auto stop = std::ranges::find(*records, "stop", &LogRecord::kind);
    ASSERT_NE(stop, records->end());
    EXPECT_THAT(stop->line, HasSubstr(text));
  }
}

// What a save must not run: the code of a step whose inputs or state are gone.
struct Since {
  std::string what;
  std::function<void(Steps&)> change;  // after the last step
  std::function<void(const std::function<void()>&)> around = [](const auto& save) { save(); };
};

TEST(UncheckedSteps, ASaveRunsNoCodeUnderAnotherState) {
  const std::vector<Since> cases = {
      {"a batch of another size and a new number",
       [](Steps& run) {
         run.factor = 2;
         run.steps(1, 12);
       }},
      {"another size, recorded, and a new number",
       [](Steps& run) {
         run.factor = 2;
         run.steps(2, 12);
       }},
      {"a layer in another mode", [](Steps& run) { run.net->eval(); }},
      {"a frozen weight", [](Steps& run) { run.net->a->weight.requires_grad_(false); }},
      {"a hook inside the step", [](Steps& run) { run.trainer->on(HookPoint::kAfterBackward, [](TrainContext&) {}); }},
      {"weights elsewhere", [](Steps& run) { run.net->a->weight.set_data(run.net->a->weight.detach().clone()); }},
      {"a tensor rebound", [](Steps& run) { run.scale = torch::full({}, 2.0); }},
      {"without gradients", [](Steps&) {},
       [](const auto& save) {
         const torch::NoGradGuard guard;
         save();
       }},
      {"another default dtype", [](Steps&) {},
       [](const auto& save) {
         const auto before = torch::get_default_dtype();
         torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
         save();
         torch::set_default_dtype(before);
       }},
  };
  for (const Since& since : cases) {
    const TempDir folder;
    Steps run(Check::kOff);
    run.steps(12);
    since.change(run);
    const int64_t calls = run.calls;
    const auto save = [&] { EXPECT_EQ(run.saved_in(folder / "c").count, 10) << since.what; };
    EXPECT_NO_THROW(since.around(save)) << since.what;
    EXPECT_EQ(run.calls, calls) << since.what;
  }
}

TEST(UncheckedSteps, ATensorThatIsReboundBeforeASaveIsCapturedAnewAtTheNextStep) {
  const TempDir folder;
  Steps run(Check::kBudget, "graph", /*verify_interval=*/0, /*budget=*/0), eager(Check::kEvery, "eager");
  for (Steps* each : {&run, &eager}) {
    seed_all(3);
    each->steps(1100);
    each->scale = torch::full({}, 2.0);
    each->trainer->save(folder / "saved");
    each->steps(6);
  }
  EXPECT_GT(run.report().unchecked, 0);
  EXPECT_EQ(run.report().state, "captured") << run.report().reason;
  testing::expect_same_bits(eager.trainer->weights(), run.trainer->weights());
}

TEST(UncheckedSteps, AnExceptionOfTheCodeThatASaveRunsIsNoError) {
  const TempDir folder;
  Steps run(Check::kOff);
  run.steps(12);
  const at::Tensor gradient = run.net->a->weight.grad().clone();
  run.throws = true;
  const std::string said = stderr_of([&] { EXPECT_EQ(run.saved_in(folder / "c").count, 10); });
  EXPECT_THAT(said, HasSubstr("its host code threw when it was run once more, to compare it: the user's own"));
  EXPECT_THAT(said, HasSubstr("10 replays stay unchecked"));
  EXPECT_TRUE(testing::same_bits(gradient, run.net->a->weight.grad()));
  EXPECT_EQ(stderr_of([&] { run.trainer->finish(); }), "") << "one step is asked for once";
}

}  // namespace
}  // namespace duet
