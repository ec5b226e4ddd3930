#include <functional>
#include <set>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "core/hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

namespace duet {
namespace {

constexpr int kPointCount = static_cast<int>(HookPoint::kInStep);  // points that take a TrainContext

using Report = std::function<void(const std::string& hook, HookPoint point)>;

// Overrides every point and reports each call; its state is a count.
class Probe : public Hook {
 public:
  explicit Probe(std::string name, int priority = kNormal, std::vector<std::string> after = {}, Report report = nullptr)
      : name_(std::move(name)), priority_(priority), after_(std::move(after)), report_(std::move(report)) {}

  std::string name() const override { return name_; }
  int priority() const override { return priority_; }
  std::vector<std::string> after() const override { return after_; }

#define DUET_AT(point, member) \
  void member(TrainContext&) override { at(HookPoint::point); }
  DUET_HOOK_POINTS(DUET_AT)
#undef DUET_AT
  void in_step(StepView&) override { at(HookPoint::kInStep); }

  StateDict state_dict() const override {
    StateDict state;
    state.set("count", StateValue(count));
    return state;
  }
  void load_state_dict(const StateDict& state) override { count = state.integer("count"); }
  int64_t count = 0;

 private:
  void at(HookPoint point) {
    if (report_) report_(name_, point);
  }

  std::string name_;
  int priority_;
  std::vector<std::string> after_;
  Report report_;
};

std::unique_ptr<Hook> probe(std::string name, int priority = kNormal, std::vector<std::string> after = {},
                            Report report = nullptr) {
  return std::make_unique<Probe>(std::move(name), priority, std::move(after), std::move(report));
}

bool reaches_all(HookPoint point) {
  return point == HookPoint::kAfterTrain || point == HookPoint::kAfterTest || point == HookPoint::kAfterPredict ||
         point == HookPoint::kAfterRun || point == HookPoint::kOnException || point == HookPoint::kAfterLoadCheckpoint;
}

TEST(HookList, RefusesCirclesBadNamesAndPrioritiesAndStaysAsItWas) {
  HookList hooks;
  hooks.add(probe("outside", kNormal, {"a"}));
  hooks.add(probe("a", kNormal, {"b"}));
  hooks.add(probe("b", kNormal, {"c"}));
  const std::vector<std::string> before = hooks.order();
  const auto refuses = [&](std::unique_ptr<Hook> hook, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { hooks.add(std::move(hook)); }, parts);
    EXPECT_EQ(hooks.order(), before);
    EXPECT_EQ(hooks.size(), before.size());
  };
  refuses(probe("c", kNormal, {"a"}), {"outside, a, b, c", "after()"});
  refuses(probe("self", kNormal, {"self"}), {"self"});
  refuses(probe("a"), {"second hook 'a'"});
  refuses(probe(""), {"without dots"});
  refuses(probe("a.b"), {"'a.b'", "without dots"});
  refuses(probe("d", -1), {"priority -1", "0 to 100"});
  refuses(probe("d", 101), {"priority 101"});
  refuses(nullptr, {"no hook"});
}

TEST(HookList, CallsThePointThatItsNameSays) {
  std::vector<HookPoint> seen;
  HookList hooks;
  hooks.add(probe("a", kNormal, {}, [&](const std::string&, HookPoint point) { seen.push_back(point); }));
  FakeRun run;
  std::set<std::string> names;
  for (int i = 0; i < kPointCount; ++i) {
    const auto point = static_cast<HookPoint>(i);
    seen.clear();
    hooks.call(point, run.context);
    EXPECT_EQ(seen, std::vector<HookPoint>{point}) << to_string(point);
    names.insert(to_string(point));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kPointCount));
  EXPECT_STREQ(to_string(HookPoint::kBeforeTrainIter), "before_train_iter");
  EXPECT_STREQ(to_string(HookPoint::kOnException), "on_exception");
  EXPECT_STREQ(to_string(HookPoint::kInStep), "in_step");
  expect_error<ConfigError>([&] { hooks.call(HookPoint::kInStep, run.context); }, {"in_step"});
}

TEST(HookList, StopsAtAnErrorExceptWhereEverybodyMustBeTold) {
  FakeRun run;
  run.context.progress.step = 12;
  for (int i = 0; i < kPointCount; ++i) {
    const auto point = static_cast<HookPoint>(i);
    for (const std::set<std::string>& bad : {std::set<std::string>{"h0"}, {"h1"}, {"h2"}, {"h1", "h2"}}) {
      std::vector<std::string> called;
      const Report report = [&](const std::string& hook, HookPoint) {
        called.push_back(hook);
        if (bad.contains(hook)) throw DataError("broken " + hook);
      };
      HookList hooks;
      for (const char* name : {"h0", "h1", "h2"}) hooks.add(probe(name, kNormal, {}, report));
      const std::string& first = *bad.begin();
      const std::string text =
          "[HookList] hook '" + first + "' failed at " + to_string(point) + " of step 12: broken " + first;
      expect_error<DataError>([&] { hooks.call(point, run.context); }, {text});
      EXPECT_EQ(called.size(), reaches_all(point) ? 3U : static_cast<std::size_t>(first[1] - '0') + 1) << text;
    }
  }
}

TEST(HookList, KeepsTheKindOfAnError) {
  const std::string placed = "[HookList] hook 'a' failed at after_train_iter of step 3: why";
  struct Case {
    std::exception_ptr thrown;
    int exit_code;  // 0: no error of ours
    std::string text;
  };
  const auto of = [](const auto& error) { return std::make_exception_ptr(error); };
  const std::vector<Case> cases = {
      {of(ConfigError("why")), 2, placed},
      {of(DataError("why")), 3, placed},
      {of(CheckpointError("why")), 4, placed},
      {of(GraphError("why")), 1, placed},
      {of(Error("why", 75)), 75, placed},
      {of(NonFiniteError("why")), 5, placed},
      {of(PeerError("rank 1 is lost")), 6, "rank 1 is lost"},  // which no hook is to blame for
      {of(std::runtime_error("why")), 0, placed},
      {of(c10::Error("why", nullptr, nullptr)), 0, placed}};  // without its stack trace
  for (const Case& one : cases) {
    HookList hooks;
    hooks.add(probe("a", kNormal, {}, [&](const std::string&, HookPoint) { std::rethrow_exception(one.thrown); }));
    FakeRun run;
    run.context.progress.step = 3;
    try {
      hooks.call(HookPoint::kAfterTrainIter, run.context);
      ADD_FAILURE() << "no error";
    } catch (const Error& rethrown) {
      EXPECT_EQ(rethrown.exit_code(), one.exit_code);
      EXPECT_EQ(rethrown.what(), one.text);
    } catch (const std::runtime_error& rethrown) {
      EXPECT_EQ(one.exit_code, 0);
      EXPECT_EQ(rethrown.what(), one.text);
    }
    StepView step{run.parameters, run.output};
    EXPECT_ANY_THROW(hooks.in_step(step));
  }
}

TEST(HookList, StaysAsItIsWhileItIsCalled) {
  HookList hooks;
  hooks.add(probe("a", kNormal, {}, [&](const std::string&, HookPoint) { hooks.add(probe("b")); }));
  FakeRun run;
  expect_error<ConfigError>([&] { hooks.call(HookPoint::kBeforeTrain, run.context); }, {"added from inside of a hook"});
}

TEST(HookList, TakesLambdasAsHooksOfTheirOwn) {
  HookList hooks;
  FakeRun run;
  std::string calls;
  const auto note = [&](const char* text) { return [&calls, text](TrainContext&) { calls += text; }; };
  hooks.on(HookPoint::kAfterTrainIter, note("a"));
  hooks.on(HookPoint::kAfterTrainIter, note("b"));
  hooks.on(HookPoint::kAfterTrain, note("end"));
  hooks.on(HookPoint::kAfterTrainIter, note("c"), "early", kHighest);
  hooks.call(HookPoint::kAfterTrainIter, run.context);
  EXPECT_EQ(calls, "cab");
  EXPECT_EQ(hooks.order(),
            (std::vector<std::string>{"early", "on_after_train_iter_1", "on_after_train_iter_2", "on_after_train_1"}));
  EXPECT_FALSE(hooks.uses(HookPoint::kAfterBackward));
  expect_error<ConfigError>([&] { hooks.on(HookPoint::kInStep, note("")); }, {"on_step()"});
  expect_error<ConfigError>([&] { hooks.on(HookPoint::kAfterVal, nullptr); }, {"after_val", "no callback"});
}

TEST(HookList, KeepsTheStateOfEachHookUnderItsName) {
  HookList saved;
  for (const char* name : {"a", "ab"}) saved.add(probe(name));
  dynamic_cast<Probe*>(saved.find("a"))->count = 1;
  dynamic_cast<Probe*>(saved.find("ab"))->count = 2;
  StateDict state = saved.state_dict();
  EXPECT_EQ(state.integer("ab.count"), 2);

  HookList loaded;  // lacks "ab", has "new": both are no error
  for (const char* name : {"new", "a"}) loaded.add(probe(name));
  dynamic_cast<Probe*>(loaded.find("new"))->count = 9;
  loaded.load_state_dict(state);
  EXPECT_EQ(dynamic_cast<Probe*>(loaded.find("a"))->count, 1);
  EXPECT_EQ(dynamic_cast<Probe*>(loaded.find("new"))->count, 9);

  const StateDict before = loaded.state_dict();
  StateDict bad;
  bad.set("a.count", StateValue(int64_t{5}));
  bad.set("new.count", StateValue(std::string("many")));
  expect_error<CheckpointError>([&] { loaded.load_state_dict(bad); }, {"hook 'new' cannot take its state", "count"});
  loaded.restore(before);
  EXPECT_EQ(dynamic_cast<Probe*>(loaded.find("a"))->count, 1);
}

class TwoPoints : public Hook {
 public:
  std::string name() const override { return "two_points"; }
  void before_val(TrainContext&) override {}
  void in_step(StepView&) override {}
};

class OnePointMore : public TwoPoints {
 public:
  std::string name() const override { return "one_more"; }

 private:
  void after_backward(TrainContext&) override {}
};

class CallsBase : public Hook {
 public:
  std::string name() const override { return "calls_base"; }
  void after_backward(TrainContext& run) override { Hook::after_backward(run); }
  void after_train_iter(TrainContext& run) override { Hook::after_train_iter(run); }
};

std::vector<HookPoint> used_points(const Hook& hook) {
  std::vector<HookPoint> used;
  for (int i = 0; i < static_cast<int>(HookPoint::kCount); ++i) {
    if (hook.uses(static_cast<HookPoint>(i))) used.push_back(static_cast<HookPoint>(i));
  }
  return used;
}

TEST(HookList, KnowsFromTheTypeWhichPointsAreUsed) {
  using Points = std::vector<HookPoint>;
  EXPECT_EQ(used_points(*as_hook(std::make_unique<TwoPoints>())), (Points{HookPoint::kBeforeVal, HookPoint::kInStep}));
  EXPECT_EQ(used_points(*as_hook(std::make_unique<OnePointMore>())),
            (Points{HookPoint::kBeforeVal, HookPoint::kAfterBackward, HookPoint::kInStep}));
  // An override that does nothing but call its base is one nevertheless.
  EXPECT_EQ(used_points(*as_hook(std::make_unique<CallsBase>())),
            (Points{HookPoint::kAfterTrainIter, HookPoint::kAfterBackward}));
  // Behind a base class the type is not known: everything may be used.
  EXPECT_EQ(used_points(*as_hook(std::unique_ptr<TwoPoints>(std::make_unique<OnePointMore>()))).size(),
            static_cast<std::size_t>(HookPoint::kCount));
}

TEST(HookList, GivesTheReasonOfEveryPlace) {
  HookList hooks;
  hooks.add(probe("late", kLow));
  hooks.add(probe("first"));
  hooks.add(probe("second"));
  hooks.add(probe("moved"), kLowest);
  hooks.add(probe("waits", kHighest, {"late"}));
  std::vector<std::string> lines;
  for (const HookPlace& place : hooks.places(HookPoint::kBeforeTrain))
    lines.push_back(place.name + ": " + place.reason);
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "first: priority NORMAL (50)",
                       "second: priority NORMAL (50); added after first",
                       "late: priority LOW (70)",
                       "waits: priority HIGHEST (0); after late, as it declares",
                       "moved: priority LOWEST (100) instead of its own NORMAL (50)",
                   }));
  EXPECT_EQ(hooks.priority_of("moved"), kLowest);
  hooks.add(as_hook(std::make_unique<TwoPoints>()));
  EXPECT_EQ(hooks.places(HookPoint::kBeforeVal).size(), 6U);
  EXPECT_EQ(hooks.places(HookPoint::kBeforeTest).size(), 5U);
  expect_error<ConfigError>([&] { hooks.priority_of("nobody"); }, {"no hook 'nobody'"});
}

TEST(Priority, HasNamesAndNumbers) {
  EXPECT_EQ(parse_priority("VERY_LOW"), kVeryLow);
  EXPECT_EQ(parse_priority("65"), 65);
  for (const char* wrong : {"", "101", "-1", "5x", "normal", " 5"}) EXPECT_FALSE(parse_priority(wrong)) << wrong;
  EXPECT_EQ(priority_text(70), "LOW (70)");
  EXPECT_EQ(priority_text(71), "71");
  for (const std::string& name : priority_names()) {
    EXPECT_EQ(priority_text(*parse_priority(name)).find(name + " ("), 0U);
  }
}

TEST(CallbackHook, UsesExactlyThePointsThatHaveALambda) {
  for (int with = 0; with < static_cast<int>(HookPoint::kCount); ++with) {
    const auto point = static_cast<HookPoint>(with);
    auto hook = std::make_unique<CallbackHook>("watch");
    if (point == HookPoint::kInStep) {
      hook->on_step([](StepView&) {});
    } else {
      hook->on(point, [](TrainContext&) {});
    }
    EXPECT_EQ(used_points(*as_hook(std::move(hook))), std::vector<HookPoint>{point});
  }
  CallbackHook hook("watch");
  expect_error<ConfigError>([&] { hook.on_step(nullptr); }, {"in_step", "'watch'"});
}

class Callbacks : public testing::InBothModes {};

// The sum of the losses, taken by code of the step, equals that of the losses handed out.
TEST_P(Callbacks, AddCodeToTheStep) {
  GraphOptions graph;
  graph.fallback = Fallback::kStrict;
  graph.verify_interval = 2;
  seed_all(3);
  const auto trainer = testing::make_trainer(GetParam(), testing::mlp_task().make(), {}, graph);
  const at::Tensor sum = at::zeros({});
  at::Tensor expected = at::zeros({});
  auto hook = std::make_unique<CallbackHook>("watch");
  hook->on_step([sum](StepView& context) { sum.add_(context.output.loss); })
      .on(HookPoint::kAfterTrainIter, [&](TrainContext& context) { expected = expected + context.step.loss(); });
  trainer->add_hook(std::move(hook));
  for (uint64_t n = 0; n < 9; ++n) trainer->step(testing::mlp_task().batch(8, n));
  trainer->finish();
  EXPECT_GT(expected.item<float>(), 0);
  EXPECT_TRUE(testing::same_bits(sum, expected)) << sum << expected;
}

DUET_IN_BOTH_MODES(Callbacks);

}  // namespace
}  // namespace duet
