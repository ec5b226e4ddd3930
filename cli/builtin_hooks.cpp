#include <algorithm>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/log.h"
#include "cli/builtin_types.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "core/detail/param_scheduler_hook.h"
#include "core/hook.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/detail/run_info_hooks.h"
#include "hooks/early_stopping_hook.h"
#include "hooks/ema_hook.h"
#include "hooks/epoch_hooks.h"
#include "hooks/histogram_hook.h"
#include "hooks/logger_hook.h"
#include "hooks/nan_guard_hook.h"
#include "hooks/precise_bn_hook.h"
#include "hooks/prediction_hooks.h"
#include "hooks/profiler_hook.h"
#include "hooks/throughput_hook.h"

namespace duet {

// Where config keys become the options of duet's own hooks: what the fields of their options do not say.

namespace {

// Throws ConfigError unless a validation reports `metric`.
void check_metric(const ConfigNode& node, const std::string& key, const std::string& metric,
                  const HookContext& context) {
  if (context.metrics.empty()) return;  // nothing is validated with these hooks
  require_metric(node, key, metric, context.metrics);
}

// With by_epoch the number counts epochs.
int64_t in_steps(const ConfigNode& node, int64_t number, const HookContext& context) {
  const bool by_epoch = node.read<bool>("by_epoch", false);
  if (number == 0 || !by_epoch) return number;
  if (context.steps_per_epoch > 0) return number * context.steps_per_epoch;
  node.fail("by_epoch", "is true, but the data has no epochs; count in steps with by_epoch: false");
}

std::unique_ptr<CheckpointHook> checkpoint(ConfigNode& node, HookContext& context) {
  auto options = read_options<CheckpointHookOptions>(node);
  options.interval = in_steps(node, options.interval, context);
  options.interval_time = node.read_seconds("interval_time");
  options.save_begin = in_steps(node, options.save_begin, context);
  const std::vector<std::string> wanted = options.save_best;
  for (std::string& metric : options.save_best) {
    if (metric == "auto" && !context.metrics.empty()) metric = context.metrics.front();
  }
  // A misspelt metric, or one that says not what is better, would otherwise end the run at its first validation.
  HookContext choices = context;
  if (!choices.metrics.empty()) choices.metrics.emplace_back("auto");
  for (const std::string& metric : options.save_best) check_metric(node, "save_best", metric, choices);
  node.reject_unknown();
  check_options(options);
  // The hook finds the same, and says so. The loss is named: to the hook it is what there is besides the metrics.
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (options.save_best[i] != "loss") options.save_best[i] = wanted[i];
  }
  return std::make_unique<CheckpointHook>(options);
}

std::unique_ptr<VisualizationHook> visualization(ConfigNode& node, HookContext& context) {
  auto options = read_all_options<VisualizationHookOptions>(node);
  if (context.dry_run) options.interval = 1;
  if (context.scratch) options.show = false;  // the viewer would find the folder gone
  return std::make_unique<VisualizationHook>(options);
}

// With mmengine's keys. Without `name` the first of a run is called ema, further ones ema_2, ema_3, ...
std::unique_ptr<EMAHook> ema(ConfigNode& node, HookContext& context) {
  auto options = read_options<EMAHookOptions>(node);
  if (options.average.type == "MomentumAnnealingEMA") {
    options.average.gamma = node.read<int64_t>("gamma", options.average.gamma);
  }
  if (options.average.type == "StochasticWeightAverage" && options.average.momentum != WeightAverageOptions().momentum)
    node.fail("momentum", "is set, but a StochasticWeightAverage counts all weights alike; remove it");
  const std::string first = options.name;
  for (int number = 2; context.hooks.find(options.name) != nullptr; ++number)
    options.name = concat_text(first, "_", number);
  options.name = node.find<std::string>("name").value_or(options.name);
  node.reject_unknown();
  return std::make_unique<EMAHook>(options);
}

std::unique_ptr<EarlyStoppingHook> early_stopping(ConfigNode& node, HookContext& context) {
  const auto options = read_options<EarlyStoppingHookOptions>(node);
  node.reject_unknown();
  if (options.strict) check_metric(node, "monitor", options.monitor, context);
  return std::make_unique<EarlyStoppingHook>(options);
}

std::unique_ptr<PreciseBNHook> precise_bn(ConfigNode& node, HookContext& context) {
  const auto options = read_all_options<PreciseBNHookOptions>(node);
  return std::make_unique<PreciseBNHook>(context.training_data ? context.training_data() : nullptr, options);
}

std::unique_ptr<ProfilerHook> profiler(ConfigNode& node, HookContext& context) {
  auto options = read_all_options<ProfilerHookOptions>(node);
  if (context.scratch) options.folder.clear();
  return std::make_unique<ProfilerHook>(options);
}

std::unique_ptr<PredictionWriterHook> prediction_writer(ConfigNode& node, HookContext& context) {
  auto options = read_all_options<PredictionWriterHookOptions>(node);
  if (context.scratch) options.folder.clear();
  if (!context.output.empty()) options.folder = context.output;
  return std::make_unique<PredictionWriterHook>(options);
}

struct SwitchModeOptions {
  int64_t step = 0;  // the first one that runs in `mode`
  Mode mode = Mode::kGraph;

  static const OptionFields& fields() {
    using O = SwitchModeOptions;
    return described<O>("SwitchModeHook", [](const auto& add) {
      add("step", &O::step, "the first step that runs in `mode`").in(at_least(0));
      add("mode", &O::mode, "how steps run from there on", {"eager", "graph"});
    });
  }
};

// Runs the steps from one on in another mode: op by op while a model is new, captured from then on.
std::unique_ptr<CallbackHook> switch_mode(ConfigNode& node, HookContext&) {
  const auto options = read_all_options<SwitchModeOptions>(node);
  auto hook = std::make_unique<CallbackHook>(std::string("switch_to_") + to_string(options.mode));
  hook->on(HookPoint::kBeforeTrainIter, [options](TrainContext& context) {
    if (context.progress.step < options.step || context.mode == to_string(options.mode)) return;
    context.trainer.set_mode(options.mode);
    log_info(
        concat_text("[SwitchModeHook] steps run in mode ", context.mode, " from step ", context.progress.step, " on"));
  });
  return hook;
}

// Of LoggerHook: the keys of mmengine's LoggerHook and LogProcessor in one map, and the sinks in the place of its
// vis_backends.

// A number of steps, or epoch, or global.
int64_t read_window_size(const ConfigNode& node, int64_t fallback) {
  const std::string text = node.read<std::string>("window_size", std::to_string(fallback));
  if (text == "epoch") return kEpochWindow;
  if (text == "global") return kGlobalWindow;
  const std::optional<int64_t> steps = parse_number<int64_t>(text);
  if (steps && *steps >= 1) return *steps;
  node.fail_value("window_size", "a number of steps of at least 1, epoch or global");
}

LogStatistic read_statistic(const ConfigNode& node) {
  auto statistic = read_options<LogStatistic>(node);
  statistic.window_size = read_window_size(node, statistic.window_size);
  node.located([&] { check_options(statistic); });
  return statistic;
}

// A sink is a map with its type, or the type's name alone.
std::string type_of_sink(const ConfigNode& node) {
  return node.kind() == ConfigNode::Kind::kValue ? node.text() : node.need<std::string>("type");
}

// A key of one type is unknown to the others.
LogSinkOptions read_sink(const ConfigNode& node) {
  std::vector<std::string> types = {"terminal", "jsonl", "tensorboard", "wandb"};
  LogSinkOptions sink{.type = type_of_sink(node)};
  const bool is_word = node.kind() == ConfigNode::Kind::kValue;
  if (std::find(types.begin(), types.end(), sink.type) == types.end()) {
    const std::vector<std::string> own = registered("sink");
    types.insert(types.end(), own.begin(), own.end());
    node.fail_value(is_word ? "" : "type", "a sink; " + known_and_nearest(sink.type, types));
  }
  if (is_word) return sink;
  const auto read = [&](const char* key, std::string& into) { into = node.find<std::string>(key).value_or(""); };
  if (sink.type == "jsonl") read("file", sink.file);
  if (sink.type == "tensorboard" || sink.type == "wandb") read("folder", sink.folder);
  if (sink.type == "wandb") {
    read("project", sink.project);
    read("name", sink.name);
    read("entity", sink.entity);
    read("id", sink.id);
  }
  node.located([&] { check_options(sink); });
  return sink;
}

std::unique_ptr<LoggerHook> logger(ConfigNode& node, HookContext& context) {
  auto options = read_options<LoggerHookOptions>(node);
  for (const ConfigNode& item : node.list("custom_cfg")) options.window.custom_cfg.push_back(read_statistic(item));
  const ConfigNode sinks = node.child("sinks");
  if (sinks.is_set()) options.sinks.clear();
  const std::vector<std::string> own_types = registered("sink");
  std::vector<std::unique_ptr<LogSink>> own;
  for (const ConfigNode& item : node.list("sinks")) {
    if (std::ranges::count(own_types, type_of_sink(item)) > 0) {
      if (!context.scratch && !context.evaluates) own.push_back(register_sink.make(item));
      item.check_later();
    } else {
      options.sinks.push_back(read_sink(item));
    }
  }
  if (context.scratch) {
    options.file.clear();
    for (LogSinkOptions& sink : options.sinks) sink.file = sink.folder = "";
  }
  node.reject_unknown();
  // A run of its own, which does not belong among the steps of the training's files.
  if (context.evaluates) options.sinks = {{.type = "terminal"}};
  return std::make_unique<LoggerHook>(options, std::move(own));
}

// Hooks of which the fields say everything, and those without options.
template <class H, Described Options>
void add_hook(const char* name) {
  register_hook(
      name, [](ConfigNode& node, HookContext&) { return std::make_unique<H>(read_all_options<Options>(node)); },
      AnyOptions(Options()));
}

template <class H>
void add_hook(const char* name) {
  register_hook(name, [](ConfigNode&, HookContext&) { return std::make_unique<H>(); });
}

}  // namespace

void add_builtin_hooks() {
  add_hook<RuntimeInfoHook>("RuntimeInfoHook");
  add_hook<IterTimerHook>("IterTimerHook");
  add_hook<DistSamplerSeedHook>("DistSamplerSeedHook");
  add_hook<SyncBuffersHook>("SyncBuffersHook");
  add_hook<EmptyCacheHook, EmptyCacheHookOptions>("EmptyCacheHook");
  add_hook<NaNGuardHook, NaNGuardHookOptions>("NaNGuardHook");
  add_hook<HistogramHook, HistogramHookOptions>("HistogramHook");
  add_hook<ThroughputHook, ThroughputHookOptions>("ThroughputHook");
  register_hook("SwitchModeHook", switch_mode, AnyOptions(SwitchModeOptions()));
  register_hook("ParamSchedulerHook", [](ConfigNode&, HookContext& context) {
    return std::make_unique<ParamSchedulerHook>(context.schedules);
  });
  register_hook("VisualizationHook", visualization, AnyOptions(VisualizationHookOptions()));
  register_hook("SegVisualizationHook", visualization, AnyOptions(VisualizationHookOptions()));
  register_hook("CheckpointHook", checkpoint, AnyOptions(CheckpointHookOptions()));
  register_hook("LoggerHook", logger, AnyOptions(LoggerHookOptions()));
  register_hook("EMAHook", ema, AnyOptions(EMAHookOptions()));
  register_hook("EarlyStoppingHook", early_stopping, AnyOptions(EarlyStoppingHookOptions()));
  register_hook("PreciseBNHook", precise_bn, AnyOptions(PreciseBNHookOptions()));
  register_hook("ProfilerHook", profiler, AnyOptions(ProfilerHookOptions()));
  register_hook("PredictionWriterHook", prediction_writer, AnyOptions(PredictionWriterHookOptions()));
}

}  // namespace duet
