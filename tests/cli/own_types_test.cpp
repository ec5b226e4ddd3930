#include <algorithm>
#include <functional>
#include <utility>
#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/build.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "data/transform.h"
#include "hooks/logger_hook.h"
#include "optim/groups/detail/param_group_builder.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"

// Optimizers and schedules that a program registers are named in configs like the built-in ones.

namespace duet {
namespace {

ConfigNode config(const std::string& more) {
  return ConfigNode::parse_text("model: {type: Mlp}\ntrainer: {max_steps: 100}\n" + more, "c.yaml");
}

TEST(OwnTypes, AnOptimizerReadsItsOwnKeys) {
  const RunConfig run = parse_run_config(config("optim_wrapper: {optimizer: {type: SignDescent, memory: 0.5}}\n"), "c");
  ASSERT_NE(run.trainer.optimizer.own_kind(), nullptr);
  EXPECT_EQ(run.trainer.optimizer.own_kind()->name, "SignDescent");
  EXPECT_EQ(base_numbers(run.trainer.optimizer), (std::map<std::string, double>{{"lr", 0.01}, {"memory", 0.5}}));
}

TEST(OwnTypes, AScheduleReadsItsOwnKeysBesideTheCommonOnes) {
  const RunConfig run = parse_run_config(config("param_scheduler: [{type: Halves, begin: 10, every: 5}]\n"), "c");
  const auto schedules = resolve_schedules(run.schedules, 0);
  validate_schedules(schedules, {100, 0});
  const ScheduleCurve curve(schedules, "lr", {100, 0});
  for (const auto& [step, value] : {std::pair(9, 8.0), {14, 8.0}, {15, 4.0}, {20, 2.0}})
    EXPECT_EQ(curve.at(step, 8.0), value);
}

// Batches without numbers, each input the count of those before it.
class Ramp : public DataSource {
 public:
  Ramp(const SourceContext& context, int64_t length) : context_(context), length_(length) {}
  void start_epoch(int64_t /*epoch*/) override { next_ = 0; }
  std::optional<Batch> next() override {
    if (next_ == length_) return std::nullopt;
    const at::Tensor input = at::full({context_.batch_size, 2}, static_cast<double>(next_++), at::kFloat);
    return Batch{{"input", input}, {"target", at::zeros({context_.batch_size}, at::kLong)}};
  }
  int64_t batches_per_epoch() const override { return 0; }
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict& /*state*/) override {}

 private:
  SourceContext context_;
  int64_t length_, next_ = 0;
};

std::vector<int64_t> drawn_samples;
std::vector<std::string> sunk_kinds;

class LastFirst : public EpochSampler {
 public:
  explicit LastFirst(const SamplerContext& context) : EpochSampler(context.dataset.size(), false, context.seed) {}
  std::vector<int64_t> next(int64_t count) override {
    std::vector<int64_t> indices = EpochSampler::next(count);
    for (int64_t& index : indices) drawn_samples.push_back(index = size() - 1 - index);
    return indices;
  }
};

class KindSink : public LogSink {
 public:
  void write(const LogRecord& record) override { sunk_kinds.push_back(record.kind); }
};

// Pictures [1, channels, height, width] become "input" [1, values].
class Flatten : public Transform {
 public:
  explicit Flatten(std::string tensor) : tensor_(std::move(tensor)) {}
  void apply(Batch& sample, SampleRandom& /*random*/) const override {
    sample.set("input", sample[tensor_].flatten(1));
  }

 private:
  std::string tensor_;
};

const bool kOwnTypesRegistered = [] {
  register_optimizer("SignDescent", [](ConfigNode& node) {
    const double lr = node.read_number("lr", 0.01, 0);
    const double memory = node.need<double>("memory");
    OptimizerKind kind;
    kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>{}; };
    kind.numbers = [=](const OptimizerOptions&) {
      return std::map<std::string, double>{{"lr", lr}, {"memory", memory}};
    };
    kind.kernel = [](const KernelCall&, const OptimizerOptions&) {};
    return kind;
  });
  register_schedule("Halves", [](ConfigNode& node) {
    const int64_t every = node.read_int("every", 10, 1);
    return
        [every](const ScheduleStep& at) { return at.taken_over / static_cast<double>(int64_t{1} << (at.s / every)); };
  });
  register_source("Ramp", [](ConfigNode& node, SourceContext& context) {
    return std::make_unique<Ramp>(context, node.read_int("length", 5, 1));
  });
  register_sampler("LastFirst", [](ConfigNode& node, SamplerContext& context) {
    node.read<bool>("loud", false);
    return std::make_unique<LastFirst>(context);
  });
  register_sink("KindSink", [](ConfigNode& node) {
    node.read<bool>("loud", false);
    return std::make_unique<KindSink>();
  });
  register_loader("Halving", [](ConfigNode& node, LoaderContext& context) {
    context.options.batch_size /= node.read_int("by", 2, 1);
    return std::make_unique<DataLoader>(std::move(context.dataset), std::move(context.sampler), context.options);
  });
  register_transform(
      "Flatten", [](ConfigNode& node) { return std::make_unique<Flatten>(node.read<std::string>("tensor", "image")); });
  register_dataset("Squares", [](ConfigNode&) {
    return std::make_shared<TensorDataset>(
        NamedTensors{{"image", at::rand({6, 1, 2, 2})}, {"target", at::zeros({6}, at::kLong)}});
  });
  register_dataset("Six", [](ConfigNode&) {
    return std::make_shared<TensorDataset>(
        NamedTensors{{"input", at::rand({6, 2})}, {"target", at::zeros({6}, at::kLong)}});
  });
  return true;
}();

int64_t steps_of(const std::string& data, const std::string& more = "", int64_t in_features = 2) {
  const std::string model = c10::str("model: {type: Mlp, in_features: ", in_features, ", num_classes: 2}\n");
  const RunConfig run =
      parse_run_config(ConfigNode::parse_text(model + "trainer: {max_epochs: 2}\n" + data + more, "c.yaml"), "c");
  Run built = build_training(in_scratch(run, ::testing::TempDir() + "own_types"));
  add_hooks(run, built);
  train_on(*built.train, run, built);
  return built.trainer->progress().step;
}

TEST(OwnTypes, AStreamTakesThePlaceOfADataset) {
  EXPECT_EQ(steps_of("data: {train: {type: Ramp, batch_size: 3}, val: {type: Ramp, length: 2}}\n"), 10);
  EXPECT_EQ(steps_of("data: {train: {type: Ramp, length: 3}}\nmode: graph\n"), 6);
}

TEST(OwnTypes, ASamplerIsNamedOrAMap) {
  for (const char* sampler : {"LastFirst", "{type: LastFirst, loud: true}"}) {
    drawn_samples.clear();
    EXPECT_EQ(steps_of(c10::str("data: {train: {type: Six, batch_size: 4, sampler: ", sampler, "}}\n")), 4);
    EXPECT_EQ(drawn_samples, (std::vector<int64_t>{5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0}));
  }
}

TEST(OwnTypes, ASinkGetsTheLinesOfALogger) {
  for (const char* sink : {"KindSink", "{type: KindSink}", "{type: KindSink, loud: true}"}) {
    sunk_kinds.clear();
    steps_of("data: {train: {type: Ramp}}\n",
             c10::str("default_hooks: {logger: {interval: 5, sinks: [", sink, "]}}\n"));
    EXPECT_EQ(std::count(sunk_kinds.begin(), sunk_kinds.end(), "train"), 2) << sink;
    EXPECT_EQ(sunk_kinds.back(), "stop");
  }
}

TEST(OwnTypes, ALoaderReadsADatasetInThePlaceOfDuets) {
  for (const auto& [loader, steps] : {std::pair("default", 2), {"Halving", 4}, {"{type: Halving, by: 3}", 6}}) {
    drawn_samples.clear();
    const std::string data =
        c10::str("data: {train: {type: Six, batch_size: 6, sampler: LastFirst, loader: ", loader, "}}\n");
    EXPECT_EQ(steps_of(data), steps);
    EXPECT_EQ(drawn_samples.front(), 5) << "it reads what the sampler gives";
  }
}

TEST(OwnTypes, ATransformIsNamedBesideTheBuiltInOnes) {
  EXPECT_EQ(
      steps_of("data: {train: {type: Squares, batch_size: 3, transforms: [{type: RandomFlip}, {type: Flatten}]}}\n", "",
               4),
      4);
}

TEST(OwnTypes, MisspeltNamesAndKeysAreRefusedByName) {
  const auto train = [](const std::string& keys) { return "data: {train: {" + keys + "}}\n"; };
  const auto optimizer = [](const std::string& keys) { return "optim_wrapper: {optimizer: {type: " + keys + "}}\n"; };
  const auto sink = [&](const std::string& name) {
    return train("type: Ramp") + "default_hooks: {logger: {sinks: [" + name + "]}}\n";
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {optimizer("SignDescent, memory: 1, betas: [1, 2]"),
       {"unknown key 'betas' in optim_wrapper.optimizer", "known: type, lr, memory"}},
      {"param_scheduler: [{type: Halfs}]\n", {"did you mean 'Halves'"}},
      {train("type: Ramp, lenght: 3"), {"unknown key 'lenght'", "did you mean 'length'"}},
      {train("type: Six, sampler: LastFist"), {"data.train.sampler", "did you mean 'LastFirst'", "default, infinite"}},
      {train("type: Six, sampler: {type: LastFirst, lout: true}"), {"unknown key 'lout'"}},
      {sink("{type: KindSink, lout: true}"), {"unknown key 'lout'"}},
      {sink("KindSnk"), {"sinks.0", "did you mean 'KindSink'"}},
      {train("type: Six, batch_size: 6, loader: {type: Halving, bye: 3}"), {"unknown key 'bye'", "did you mean 'by'"}},
      {train("type: Six, loader: Halvin"), {"data.train.loader", "a loader", "did you mean 'Halving'"}},
      {train("type: Six, transforms: [{type: Flatten, tensors: x}]"), {"unknown key 'tensors'", "'tensor'"}}};
  for (const auto& [text, parts] : cases) {
    SCOPED_TRACE(text);
    expect_error<ConfigError>([&] { steps_of(text); }, parts);
  }
}

TEST(OwnTypes, NamesAreTakenOnce) {
  const OptimizerRegistry::Factory optimizer = [](ConfigNode&) { return OptimizerKind{}; };
  const ScheduleRegistry::Factory schedule = [](ConfigNode&) { return ScheduleFormulaFn{}; };
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[&] { register_optimizer("SignDescent", optimizer); }, "'SignDescent' is registered twice"},
      {[&] { register_optimizer("AdamW", optimizer); }, "'AdamW' is registered twice"},
      {[&] { register_optimizer("", optimizer); }, "without name or factory"},
      {[&] { register_schedule("CosineAnnealingLR", schedule); }, "registered twice"},
      {[&] { register_schedule("X", ScheduleRegistry::Factory{}); }, "without name or factory"},
      {[] { register_source("Csv", [](ConfigNode&, SourceContext&) { return nullptr; }); }, "source type 'Csv'"},
      {[] { register_sampler("infinite", [](ConfigNode&, SamplerContext&) { return nullptr; }); }, "'infinite'"},
      {[] { register_loader("default", [](ConfigNode&, LoaderContext&) { return nullptr; }); }, "'default'"}};
  for (const auto& [call, message] : cases) expect_error<ConfigError>(call, {message});
}

}  // namespace
}  // namespace duet
