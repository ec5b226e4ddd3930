#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <gtest/gtest.h>
#include "base/error.h"
#include "core/hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"

namespace duet {
namespace {

constexpr int kPointCount = static_cast<int>(HookPoint::kInStep);  // points that take a TrainContext

using Report = std::function<void(const std::string& hook, HookPoint point)>;

// Overrides every point and reports each call.
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

struct Spec {
  int priority;
  std::set<int> after;
};

// By definition: of all orders that respect the relations, the one whose sequence of (priority, registration) is the
// smallest. Found by trying all of them.
std::vector<int> smallest_order(const std::vector<Spec>& specs) {
  std::vector<int> order, best;
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) order.push_back(i);
  const auto keys = [&](const std::vector<int>& candidate) {
    std::vector<std::pair<int, int>> result;
    for (const int i : candidate) result.emplace_back(specs[i].priority, i);
    return result;
  };
  do {
    std::set<int> placed;
    bool valid = true;
    for (const int i : order) {
      valid = valid && std::includes(placed.begin(), placed.end(), specs[i].after.begin(), specs[i].after.end());
      placed.insert(i);
    }
    if (valid && (best.empty() || keys(order) < keys(best))) best = order;
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(HookList, OrdersLikeTheDefinitionForRandomHooks) {
  std::mt19937 random(7);
  int circles = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Spec> specs(2 + random() % 5);
    for (Spec& spec : specs) {
      spec.priority = static_cast<int>(random() % 3) * 50;
      for (std::size_t other = 0; other < specs.size(); ++other) {
        if (random() % 6 == 0 && &specs[other] != &spec) spec.after.insert(static_cast<int>(other));
      }
    }
    const std::vector<int> expected = smallest_order(specs);
    HookList hooks;
    bool circle = false;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      std::vector<std::string> after;
      for (const int other : specs[i].after) after.push_back("h" + std::to_string(other));
      const std::size_t before = hooks.size();
      try {
        hooks.add(probe("h" + std::to_string(i), specs[i].priority, after));
      } catch (const ConfigError&) {
        EXPECT_EQ(hooks.size(), before);
        EXPECT_EQ(hooks.order().size(), before);
        circle = true;
        break;
      }
    }
    EXPECT_EQ(circle, expected.empty());
    circles += circle ? 1 : 0;
    if (circle) continue;
    std::vector<std::string> names;
    for (const int i : expected) names.push_back("h" + std::to_string(i));
    EXPECT_EQ(hooks.order(), names);
  }
  EXPECT_GT(circles, 20);
  EXPECT_LT(circles, 280);
}

TEST(HookList, NamesACircleAndStaysAsItWas) {
  HookList hooks;
  hooks.add(probe("outside", kNormal, {"a"}));
  hooks.add(probe("a", kNormal, {"b"}));
  hooks.add(probe("b", kNormal, {"c"}));
  const std::vector<std::string> before = hooks.order();
  expect_error<ConfigError>([&] { hooks.add(probe("c", kNormal, {"a"})); }, {"a after b after c after a"});
  EXPECT_EQ(hooks.order(), before);
  EXPECT_EQ(hooks.find("c"), nullptr);
  expect_error<ConfigError>([&] { hooks.add(probe("self", kNormal, {"self"})); }, {"self after self"});
}

TEST(HookList, RefusesBadNamesAndPriorities) {
  HookList hooks;
  hooks.add(probe("a"));
  expect_error<ConfigError>([&] { hooks.add(probe("a")); }, {"second hook 'a'"});
  expect_error<ConfigError>([&] { hooks.add(probe("")); }, {"without dots"});
  expect_error<ConfigError>([&] { hooks.add(probe("a.b")); }, {"'a.b'", "without dots"});
  expect_error<ConfigError>([&] { hooks.add(probe("b", -1)); }, {"priority -1", "0 to 100"});
  expect_error<ConfigError>([&] { hooks.add(probe("b", 101)); }, {"priority 101"});
  expect_error<ConfigError>([&] { hooks.add(nullptr); }, {"no hook"});
  EXPECT_EQ(hooks.size(), 1U);
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

template <class E, class Expected = E>
void expect_kind(const E& error, int exit_code,
                 const std::string& text = "[HookList] hook 'a' failed at after_train_iter of step 3: why") {
  HookList hooks;
  hooks.add(probe("a", kNormal, {}, [&](const std::string&, HookPoint) { throw error; }));
  FakeRun run;
  run.context.progress.step = 3;
  const auto call = [&] { hooks.call(HookPoint::kAfterTrainIter, run.context); };
  expect_error<Expected>(call);
  try {
    call();
  } catch (const Error& rethrown) {
    EXPECT_EQ(rethrown.exit_code(), exit_code);
    EXPECT_EQ(rethrown.what(), text);
  } catch (const std::exception& rethrown) {
    EXPECT_EQ(exit_code, 0);  // not one of ours
    EXPECT_EQ(rethrown.what(), text);
  }
}

TEST(HookList, KeepsTheKindOfAnError) {
  expect_kind(ConfigError("why"), 2);
  expect_kind(DataError("why"), 3);
  expect_kind(CheckpointError("why"), 4);
  expect_kind(GraphError("why"), 1);
  expect_kind(Error("why", 75), 75);
  expect_kind(NonFiniteError("why"), 5);
  expect_kind(PeerError("rank 1 is lost"), 6, "rank 1 is lost");  // which no hook is to blame for
  expect_kind(std::runtime_error("why"), 0);
  // LibTorch's without their stack trace.
  expect_kind<c10::Error, std::runtime_error>(c10::Error("why", nullptr, nullptr), 0);
}

TEST(HookList, StaysAsItIsWhileItIsCalled) {
  HookList hooks;
  hooks.add(probe("a", kNormal, {}, [&](const std::string&, HookPoint) { hooks.add(probe("b")); }));
  FakeRun run;
  expect_error<ConfigError>([&] { hooks.call(HookPoint::kBeforeTrain, run.context); }, {"added from inside of a hook"});
  hooks.add(probe("b"));
  EXPECT_EQ(hooks.size(), 2U);
}

TEST(HookList, ExtendsErrorsOfInStep) {
  HookList hooks;
  hooks.add(probe("a", kNormal, {}, [](const std::string&, HookPoint point) {
    if (point == HookPoint::kInStep) throw GraphError("why");
  }));
  FakeRun run;
  run.context.progress.step = 5;
  hooks.call(HookPoint::kBeforeTrainIter, run.context);
  const NamedTensors parameters;
  StepView step{parameters, run.output};
  expect_error<GraphError>([&] { hooks.in_step(step); }, {"hook 'a' failed at in_step of step 5: why"});
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

class Counter : public Hook {
 public:
  explicit Counter(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  StateDict state_dict() const override {
    StateDict state;
    state.set("count", StateValue(count));
    return state;
  }
  void load_state_dict(const StateDict& state) override { count = state.integer("count"); }
  int64_t count = 0;

 private:
  std::string name_;
};

TEST(HookList, KeepsTheStateOfEachHookUnderItsName) {
  HookList saved;
  for (const char* name : {"a", "ab"}) saved.add(std::make_unique<Counter>(name));
  dynamic_cast<Counter*>(saved.find("a"))->count = 1;
  dynamic_cast<Counter*>(saved.find("ab"))->count = 2;
  StateDict state = saved.state_dict();
  EXPECT_EQ(state.integer("ab.count"), 2);

  HookList loaded;  // lacks "ab", has "new": both are no error
  for (const char* name : {"new", "a"}) loaded.add(std::make_unique<Counter>(name));
  dynamic_cast<Counter*>(loaded.find("new"))->count = 9;
  loaded.load_state_dict(state);
  EXPECT_EQ(dynamic_cast<Counter*>(loaded.find("a"))->count, 1);
  EXPECT_EQ(dynamic_cast<Counter*>(loaded.find("new"))->count, 9);

  const StateDict before = loaded.state_dict();
  StateDict bad;
  bad.set("a.count", StateValue(int64_t{5}));
  bad.set("new.count", StateValue(std::string("many")));
  expect_error<CheckpointError>([&] { loaded.load_state_dict(bad); }, {"hook 'new' cannot take its state", "count"});
  loaded.restore(before);
  EXPECT_EQ(dynamic_cast<Counter*>(loaded.find("a"))->count, 1);
}

}  // namespace
}  // namespace duet
