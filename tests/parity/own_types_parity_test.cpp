#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/rsub.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/temp_dir.h"

// An optimizer and a schedule of somebody's own: what the built-in ones do with the same formulas, and the same bits in
// both modes.

namespace duet {
namespace {

using testing::expect_same_bits;
using testing::ToyTask;

// Lion, with two options that OptimizerOptions knows nothing of.
std::shared_ptr<const OptimizerKind> own_lion(double lr, std::array<double, 2> memory) {
  OptimizerKind kind{.name = "OwnLion"};
  kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>{{.name = "direction"}}; };
  kind.numbers = [lr, memory](const OptimizerOptions&) {
    return std::map<std::string, double>{{"lr", lr}, {"weight_decay", 0.1}, {"short", memory[0]}, {"long", memory[1]}};
  };
  kind.kernel = [](const KernelCall& call, const OptimizerOptions&) {
    using namespace kernel_math;
    decay_parameters(call);
    const Tensors& averages = call.state[0];
    const at::Tensor share = cast_like(at::rsub(number64(call, "short"), 1), averages);
    const Tensors directions = at::_foreach_lerp(averages, call.gradients, Tensors(averages.size(), share));
    at::_foreach_sign_(directions);
    add_scaled_(call.parameters, directions, -number64(call, "lr"));
    lerp_(averages, call.gradients, at::rsub(number64(call, "long"), 1));
  };
  return std::make_shared<const OptimizerKind>(kind);
}

OptimizerOptions own_options() { return own_lion(2e-3, {0.9, 0.99}); }

StateDict trained(const std::string& mode, const OptimizerOptions& optimizer, const TrainerOptions& base,
                  int64_t accumulate) {
  const ToyTask task = testing::cnn_task();
  TrainerOptions options = base;
  options.optimizer = optimizer;
  seed_all(7);
  GraphOptions strict;
  strict.fallback = Fallback::kStrict;
  const auto trainer = testing::make_trainer(mode, task.make(), options, strict);
  trainer->hyper_parameters().set_schedule(
      "lr", [](std::size_t, int64_t applied) { return 2e-3 / static_cast<double>(applied + 1); });
  for (int64_t n = 0; n < 12; ++n) {
    std::vector<Batch> micro_batches;
    for (int64_t i = 0; i < accumulate; ++i) micro_batches.push_back(task.batch(4, static_cast<uint64_t>(100 * n + i)));
    trainer->step(micro_batches);
  }
  return trainer->weights();
}

TEST(OwnOptimizer, GraphGivesTheBitsOfEager) {
  for (const int64_t accumulate : {1, 4}) {
    for (const std::optional<at::ScalarType> amp : {std::optional<at::ScalarType>(), {at::kBFloat16}, {at::kHalf}}) {
      SCOPED_TRACE(c10::str("accumulate ", accumulate, ", amp ", amp ? c10::toString(*amp) : "off"));
      TrainerOptions options;
      if (accumulate > 1) options.clip_grad = ClipNorm{.max_norm = 0.5};
      options.amp = amp;
      options.non_finite = NonFinite::kSkip;
      expect_same_bits(trained("eager", own_options(), options, accumulate),
                       trained("graph", own_options(), options, accumulate));
    }
  }
}

TEST(OwnOptimizer, ItsStateIsSavedAndChecked) {
  const ToyTask task = testing::mlp_task();
  const TempDir folder;
  TrainerOptions options;
  options.optimizer = own_options();
  seed_all(3);
  const auto whole = testing::make_trainer("eager", task.make(), options);
  for (int64_t n = 0; n < 6; ++n) {
    whole->step(task.batch(4, static_cast<uint64_t>(n)));
    if (n == 2) whole->save(folder / "run");
  }
  const auto resumed = testing::make_trainer("graph", task.make(), options);
  resumed->load(folder / "run");
  for (int64_t n = 3; n < 6; ++n) resumed->step(task.batch(4, static_cast<uint64_t>(n)));
  expect_same_bits(whole->weights(), resumed->weights());

  options.optimizer = Lion{};
  const auto other = testing::make_trainer("eager", task.make(), options);
  expect_error<CheckpointError>([&] { other->load(folder / "run"); }, {"OwnLion with direction", "Lion with exp_avg"});
}

TEST(OwnOptimizer, MustSayWhatItIs) {
  OptimizerKind half{.name = "Half"};
  OptimizerOptions options = std::make_shared<const OptimizerKind>(half);
  expect_error<ConfigError>([&] { options.validate(); }, {"slots, numbers and kernel"});
  half = *own_lion(1, {0, 0});
  half.name = "";
  options = std::make_shared<const OptimizerKind>(half);
  expect_error<ConfigError>([&] { options.validate(); }, {"kind ''", "name, slots"});
  half.name = "Half";
  half.numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"rate", 1}}; };
  options = std::make_shared<const OptimizerKind>(half);
  expect_error<ConfigError>([&] { options.validate(); }, {"'Half' has no number lr"});
}

CustomSchedule own_schedule(int64_t begin, int64_t end) {
  const auto formula = [](const ScheduleStep& at) {
    const double share = static_cast<double>(at.s) / static_cast<double>(at.length - 1);
    return at.taken_over * (1.0 * (1 - share) + 0.1 * share);
  };
  return {.type = "OwnLinear", .formula = formula, .begin = begin, .end = end};
}

TEST(OwnSchedule, GivesTheValuesOfItsFormula) {
  Linear linear{.start_factor = 1.0, .end_factor = 0.1, .begin = 3, .end = 9};
  const Constant constant{.factor = 0.5, .end = 3};
  const ScheduleCurve own({constant, own_schedule(3, 9)}, "lr", {20, 0}), built_in({constant, linear}, "lr", {20, 0});
  for (int64_t step = 0; step < 20; ++step) EXPECT_EQ(own.at(step, 0.3), built_in.at(step, 0.3)) << step;

  CustomSchedule by_epoch = own_schedule(0, 3);
  by_epoch.by_epoch = true;
  linear.begin = 0;
  linear.end = 3;
  linear.by_epoch = true;
  const ScheduleCurve own_epochs({by_epoch}, "lr", {20, 5}), epochs({linear}, "lr", {20, 5});
  for (int64_t step = 0; step < 20; ++step) EXPECT_EQ(own_epochs.at(step, 0.3), epochs.at(step, 0.3)) << step;
}

TEST(OwnSchedule, GovernsAloneAndKnowsItsLength) {
  expect_error<ConfigError>([] { validate_schedules({own_schedule(0, 10), Constant{.begin = 5}}, {20, 0}); },
                            {"OwnLinear from step 0 overlapping", "OwnLinear to govern"});
  expect_error<ConfigError>([] { validate_schedules({own_schedule(0, -1)}, {0, 0}); }, {"OwnLinear without an end"});
  validate_schedules({own_schedule(0, -1)}, {20, 0});
  CustomSchedule taken = own_schedule(0, 10);
  taken.type = "Cosine";
  expect_error<ConfigError>([&] { check_schedule(taken); }, {"'Cosine'", "a name of its own"});
}

TEST(OwnSchedule, GraphGivesTheBitsOfEager) {
  for (const int64_t accumulate : {1, 4}) {
    std::vector<StateDict> weights;
    for (const auto& [mode, own] :
         std::vector<std::pair<std::string, bool>>{{"eager", true}, {"graph", true}, {"eager", false}}) {
      LoopOptions loop;
      loop.max_steps = 12;
      loop.accumulate = accumulate;
      const auto trainer = testing::trainer_for(
          mode, loop, "AdamW", "", own ? std::vector<Schedule>{own_schedule(2, -1)} : std::vector<Schedule>());
      const auto data = testing::loader(40);
      trainer->train(*data);
      weights.push_back(trainer->weights());
    }
    expect_same_bits(weights[0], weights[1]);
    bool same = true;
    for (const auto& [name, tensor] : weights[0].tensors())
      same = same && testing::same_bits(tensor, weights[2].tensor(name));
    EXPECT_FALSE(same) << "the schedule had no effect";
  }
}

}  // namespace
}  // namespace duet
