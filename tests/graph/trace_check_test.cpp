#include "graph/guards/trace_check.h"
#include <cmath>
#include <filesystem>
#include <set>
#include <tuple>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "graph/guards/check_schedule.h"
#include "tests/graph/both_modes.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"

// Whether host code still does what was recorded, and what is said of replays before which it did not run.

namespace duet {
namespace {

using testing::batch_at;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::stderr_of;
using testing::TwoLayers;

// Steps of one model, whose loss depends on what the test changes between them.
struct Steps {
  explicit Steps(Check check, const std::string& mode = "graph", int64_t verify_interval = 0, double budget = 0.03,
                 Fallback fallback = Fallback::kAuto) {
    seed_all(3);
    net = std::make_shared<TwoLayers>();
    const GraphOptions graph{
        .fallback = fallback, .check = check, .check_budget = budget, .verify_interval = verify_interval};
    trainer = testing::make_trainer(mode,
                                    make_task(net,
                                              [this](TwoLayers& own, const Batch& batch) {
                                                ++calls;
                                                if (throws) throw std::runtime_error("the user's own");
                                                const at::Tensor loss = plain_loss(own, batch) * scale * factor;
                                                return end ? end(*this, loss) : loss;
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

  std::shared_ptr<TwoLayers> net;
  double factor = 1, other = 1;
  at::Tensor scale = torch::ones({});
  std::function<at::Tensor(const Steps&, const at::Tensor& loss)> end{};
  bool throws = false;
  int64_t calls = 0;
  std::unique_ptr<BaseTrainer> trainer;
};

TEST(TraceCheck, StrictNamesWhatDiffersAndStops) {
  Steps run(Check::kEvery, "graph", 0, 0.03, Fallback::kStrict);
  run.steps(5);
  run.factor = 2;
  expect_error<GraphError>([&] { run.steps(1); }, {"'other' of aten::mul.Scalar is 2., where 1. was recorded"});
}

// Random numbers that were drawn before it are drawn, as in eager mode; steps 1 and 2 are recorded and compared.
TEST(TraceCheck, AnExceptionAfterADropoutLeavesTheStateOfEager) {
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    int64_t calls = 0;
    const auto loss = [&calls](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::dropout(net.a(batch["input"]), 0.5, true);
      if (++calls == 2 || calls == 4 || calls % 6 == 0) throw std::runtime_error("a bad batch");
      return torch::nn::functional::cross_entropy(net.b(hidden), batch["target"]);
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), loss));
    for (int64_t n = 0; n < 20; ++n) {
      try {
        trainer->step(batch_at(n));
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), std::string("a bad batch"));
      }
    }
    EXPECT_EQ(calls, 20) << "it comes once, and as it is";
    states[mode == "graph"] = trainer->state_dict();
    if (mode == "graph") {
      EXPECT_EQ(dynamic_cast<GraphTrainer&>(*trainer).report()[0].state, "captured");
    }
  }
  testing::expect_same_bits(states[0], states[1]);
}

// Unchecked replays before the difference: nobody knows how they would have gone.
TEST(TraceCheck, ASaveChecksFirst) {
  const TempDir folder;
  Steps run(Check::kOff);
  run.steps(6);
  EXPECT_EQ(run.calls, 2);
  run.trainer->save(folder / "early");
  EXPECT_EQ(run.calls, 3) << "the host code of the unchecked steps runs once more";
  run.factor = 2;
  run.steps(3);
  // Up to 7: those before the first save did not run their host code.
  expect_error<GraphError>([&] { run.trainer->save(folder / "late"); }, {"aten::mul.Scalar is 2.", "Up to 7 steps"});
  EXPECT_FALSE(std::filesystem::exists(folder / "late/step-9"));
}

// Where the code catches whatever is thrown.
TEST(TraceCheck, TheEndOfARunChecksWhatWasNot) {
  bool extra = false;
  const auto loss = [&extra](TwoLayers& net, const Batch& batch) {
    at::Tensor value = plain_loss(net, batch);
    try {
      if (extra) value = value + net.a->weight.square().sum();
    } catch (...) {
    }
    return value;
  };
  const auto trainer = testing::graph_trainer(loss, {.check = Check::kOff, .verify_interval = 0});
  for (int64_t n = 0; n < 7; ++n) {
    extra = n == 6;
    trainer->step(batch_at(n));
  }
  EXPECT_THROW(trainer->finish(), GraphError);
}

// Asks `schedule` before each of so many replays, which take 1 beside a check and `alone` otherwise; the replays
// between two checks.
std::vector<int64_t> pauses_between_checks(CheckSchedule& schedule, int64_t replays, double check, double alone) {
  std::vector<int64_t> pauses;
  for (int64_t n = 0, last = 0; n < replays; ++n) {
    if (schedule.due()) {
      pauses.push_back(n - std::exchange(last, n));
      schedule.checked(check, 1);
    } else {
      schedule.replayed(0);
      schedule.note_replay(alone);
    }
  }
  return pauses;
}

// The first ones, and then no more than the budget, at no fixed period: a share of 0.02 of the steps, 4 000
// of them, give or take six standard deviations. What a check takes is more than the time until its replay begins, as
// that one finds cold caches: in the second case a replay takes twice as long after a check.
TEST(CheckSchedule, KeepsToItsBudget) {
  constexpr int64_t kReplays = 200000;
  for (const auto& [check, alone, share] : {std::tuple(2.5, 1.0, 0.03 / 1.5), {1.1, 0.5, 0.03 / (0.6 / 0.5)}}) {
    CheckSchedule schedule(Check::kBudget, /*budget=*/0.03, std::make_shared<int64_t>(0));
    schedule.restart(/*always=*/false);
    EXPECT_EQ(std::ssize(pauses_between_checks(schedule, CheckSchedule::kFirst, check, alone)), CheckSchedule::kFirst);
    const std::vector<int64_t> pauses = pauses_between_checks(schedule, kReplays, check, alone);
    const double wanted = share * kReplays;
    EXPECT_NEAR(static_cast<double>(pauses.size()), wanted, 6 * std::sqrt(wanted) + 100);
    EXPECT_GT(std::set<int64_t>(pauses.begin(), pauses.end()).size(), 50U) << "the checks have a period";
  }
}

// Until the code is found to do something else.
TEST(CheckSchedule, TrustsTheCodeOfOtherSignaturesSooner) {
  std::vector<CheckSchedule> schedules(4, CheckSchedule(Check::kBudget, /*budget=*/0.03, std::make_shared<int64_t>(0)));
  const auto checked_in_a_row = [&](std::size_t signature) {
    CheckSchedule& schedule = schedules[signature];
    schedule.restart(/*always=*/false);
    int64_t checks = 0;
    for (; schedule.due(); ++checks) schedule.checked(100, 1);
    return checks;
  };
  EXPECT_EQ(checked_in_a_row(0), CheckSchedule::kFirst);
  EXPECT_EQ(checked_in_a_row(1), CheckSchedule::kFirstOfEach);
  EXPECT_FALSE(schedules[1].due());
  schedules[2].differed();
  EXPECT_TRUE(schedules[1].due());
  EXPECT_EQ(checked_in_a_row(3), CheckSchedule::kFirst);
}

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

// A new capture refers to the tensor as well.
TEST(UncheckedSteps, ATensorThatIsReboundAfterAnotherCaptureIsNoticedAtTheNextStep) {
  Steps run(Check::kBudget, "graph", /*verify_interval=*/0, /*budget=*/0), eager(Check::kEvery, "eager");
  for (Steps* each : {&run, &eager}) {
    seed_all(3);
    each->steps(1100);
    each->steps(2, /*size=*/4);
    each->scale = torch::full({}, 2.0);
    each->steps(6);
  }
  EXPECT_GT(run.report().unchecked, 0);
  testing::expect_same_bits(eager.trainer->weights(), run.trainer->weights());
}

// What had changed before would be an old value for ever, were it taken for new in the step of the exchange.
TEST(UncheckedSteps, ATensorThatIsReboundDoesNotHideWhatChangedBefore) {
  struct Case {
    std::string what;
    std::function<at::Tensor(const Steps&, const at::Tensor& loss)> end;
    bool is_found = true;
  };
  const std::vector<Case> cases = {
      {"nothing", [](const Steps&, const at::Tensor& loss) { return loss; }, false},
      {"a number", [](const Steps& run, const at::Tensor& loss) { return loss * run.other; }},
      {"a power", [](const Steps& run, const at::Tensor& loss) { return loss.pow(run.other); }},
      {"a tensor of a number",
       [](const Steps& run, const at::Tensor& loss) { return loss * torch::tensor(run.other); }},
      {"an op", [](const Steps& run, const at::Tensor& loss) { return run.other > 1 ? loss.abs() : loss.neg(); }},
      {"a tensor that is still there",
       [one = torch::ones({}), two = torch::full({}, 2.0)](const Steps& run, const at::Tensor& loss) {
         return loss * (run.other > 1 ? two : one);
       }},
      {"one op more", [](const Steps& run, const at::Tensor& loss) { return run.other > 1 ? loss.abs() : loss; }},
      {"a longer list",
       [](const Steps& run, const at::Tensor& loss) {
         return torch::stack(std::vector<at::Tensor>(static_cast<std::size_t>(run.other), loss)).mean();
       }},
      {"what is read off it", [](const Steps& run, const at::Tensor& loss) { return loss * run.scale.item<double>(); },
       false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Steps run(Check::kBudget, "graph", /*verify_interval=*/0, /*budget=*/0);
    run.end = c.end;
    run.steps(1100);
    run.other = 2;
    run.steps(4);
    run.scale = torch::full({}, 2.0);
    if (c.is_found) {
      expect_error<DoubtError>([&] { run.steps(1); }, {"may have used an old value"});
    } else {
      EXPECT_NO_THROW(run.steps(6));
    }
  }
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
