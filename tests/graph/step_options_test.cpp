#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <torch/torch.h>
#include "base/device.h"
#include "base/error.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "tests/support/sample_state.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// Every option of the three entry points either changes what steps do or is refused by its name: nobody is left to
// believe in one that acts on nothing.

namespace duet {
namespace {

using testing::TwoLayers;

using Change = std::function<void(TrainerOptions&)>;

enum class Entry { kEagerTrainer, kGraphTrainer, kEagerStep, kGraphStep };

std::string bytes_of(const NamedTensors& tensors) {
  std::string bytes;
  for (const auto& [name, tensor] : tensors) bytes += tensor_bytes(tensor);
  return bytes;
}

std::unique_ptr<Task> task() {
  return make_task(
      std::make_shared<TwoLayers>(), [](TwoLayers& net, const Batch& batch) { return net.forward(batch["input"]); },
      [](const at::Tensor& logits, const Batch& batch) {
        return torch::nn::functional::cross_entropy(logits, batch["target"]);
      });
}

// Some steps, one of them with a batch that is not finite.
template <class Step>
void run_steps(Step& step) {
  for (int64_t n = 0; n < 6; ++n) {
    Batch batch = testing::batch_at(n);
    if (n == 4) batch.set("input", batch["input"] * std::numeric_limits<double>::infinity());
    step(batch);
  }
}

std::string outcome_of_step(Mode mode, const TrainerOptions& options) {
  GraphStep step(task(), options);
  step.set_mode(mode);
  run_steps(step);
  step.settle();
  return bytes_of(step.task().named_parameters());
}

std::string outcome_of_trainer(Mode mode, const TrainerOptions& options) {
  const auto trainer = make_trainer(mode, task(), options);
  std::string folder;
  trainer->on(HookPoint::kAfterTrainIter, [&folder](TrainContext& run) { folder = run.work_dir; });
  const auto step = [&trainer](const Batch& batch) { trainer->step(batch); };
  run_steps(step);
  trainer->finish();
  const at::Tensor predicted = trainer->predict(testing::batch_at(0))["prediction"];
  return bytes_of(trainer->task().named_parameters()) + tensor_bytes(predicted) + folder;
}

std::string outcome_of(Entry entry, const TrainerOptions& options) try {
  seed_all(7);
  const bool graph = entry == Entry::kGraphTrainer || entry == Entry::kGraphStep;
  const Mode mode = graph ? Mode::kGraph : Mode::kEager;
  return entry < Entry::kEagerStep ? outcome_of_trainer(mode, options) : outcome_of_step(mode, options);
} catch (const Error& error) {
  return error.what();
}

TrainerOptions base() {
  TrainerOptions options;
  options.device = "cpu";
  options.optimizer = SGD{.lr = 0.1};
  options.non_finite = NonFinite::kSkip;
  return options;
}

ParamGroups biases_alone(Task& task, const OptimizerOptions&) {
  ParamGroup group;
  for (const auto& item : task.named_parameters()) {
    if (item.second.dim() == 1) group.parameters.push_back(item);
  }
  return {group};
}

// By the names of the members, all of them: the structured binding fails to compile where one is missing. A norm that
// is logged changes nothing (TrainStep.ALoggedNormChangesNothing).
std::map<std::string, Change> changes() {
  TrainerOptions all;
  [[maybe_unused]] const auto& [optimizer, schedules, clip_grad, log_grad_norm, amp, amp_eval, loss_scale, non_finite,
                                param_groups, allow_untrained, freeze, loop, work_dir, distributed, device] = all;
  return {
      {"optimizer", [](TrainerOptions& o) { o.optimizer = SGD{.lr = 0.2}; }},
      {"schedules", [](TrainerOptions& o) { o.schedules = {Cosine{}}; }},
      {"clip_grad", [](TrainerOptions& o) { o.clip_grad = ClipNorm{.max_norm = 1e-3}; }},
      {"amp", [](TrainerOptions& o) { o.amp = at::kBFloat16; }},
      {"amp_eval", [](TrainerOptions& o) { o.amp_eval = false; }},
      {"loss_scale", [](TrainerOptions& o) { o.loss_scale = LossScaleOptions{.init_scale = 3}; }},
      {"non_finite", [](TrainerOptions& o) { o.non_finite = NonFinite::kRaise; }},
      {"param_groups",
       [](TrainerOptions& o) {
         o.param_groups = [](Task& task, const OptimizerOptions&) {
           return ParamGroups{{"all", task.named_parameters(), {{"lr", 0.3}}}};
         };
       }},
      {"allow_untrained", [](TrainerOptions& o) { o.allow_untrained = true, o.param_groups = biases_alone; }},
      {"freeze", [](TrainerOptions& o) { o.freeze = {"a"}; }},
      {"work_dir", [](TrainerOptions& o) { o.work_dir = "runs/x"; }},
      {"device", [](TrainerOptions& o) { o.device = "nowhere"; }},
  };
}

OptionValue other_than(const OptionValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return !*flag;
  if (const auto* count = std::get_if<int64_t>(&value)) return *count + 1;
  return std::get<double>(value) + 1;
}

class StepOptions : public ::testing::TestWithParam<Entry> {};
std::string name_of(const ::testing::TestParamInfo<Entry>& info) {
  constexpr const char* kNames[] = {"EagerTrainer", "GraphTrainer", "EagerStep", "GraphStep"};
  return kNames[static_cast<std::size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Entries, StepOptions,
                         ::testing::Values(Entry::kEagerTrainer, Entry::kGraphTrainer, Entry::kEagerStep,
                                           Entry::kGraphStep),
                         name_of);

TEST_P(StepOptions, ActOrAreRefusedByName) {
  for (const auto& [name, change] : changes()) {
    TrainerOptions options = base();
    if (name == "amp_eval") options.amp = at::kBFloat16;
    const std::string plain = outcome_of(GetParam(), options);
    change(options);
    const std::string outcome = outcome_of(GetParam(), options);
    EXPECT_NE(outcome, plain) << name << " changes nothing";
    const bool refused = outcome.starts_with("[GraphStep] found ");
    EXPECT_TRUE(!refused || outcome.starts_with("[GraphStep] found " + name + ", ")) << name << ": " << outcome;
  }
  TrainerOptions without = base();
  without.param_groups = biases_alone;
  const std::string outcome = outcome_of(GetParam(), without);
  EXPECT_NE(outcome.find("group"), std::string::npos) << outcome;  // what allow_untrained allows
}

TEST(GraphStepOptions, ThoseOfALoopAndOfRanksAreRefusedByName) {
  const auto walk = [](const OptionFields& fields, auto options_in) {
    for (const OptionField& field : fields) {
      if (!field.is_member()) continue;
      TrainerOptions options = base();
      field.set(options_in(options), other_than(field.get(options_in(options))));
      const std::string outcome = outcome_of(Entry::kGraphStep, options);
      EXPECT_TRUE(outcome.starts_with("[GraphStep] found " + field.name + ", ")) << field.name << ": " << outcome;
    }
  };
  walk(LoopOptions::fields(), [](TrainerOptions& options) { return &options.loop; });
  walk(DistributedOptions::fields(), [](TrainerOptions& options) { return &options.distributed; });
}

}  // namespace
}  // namespace duet
