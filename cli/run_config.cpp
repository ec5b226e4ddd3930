#include <duet/cli/run_config.h>

#include <c10/util/StringUtil.h>
#include <duet/core/device.h>
#include <duet/core/error.h>
#include <duet/core/nearest.h>

#include <algorithm>
#include <limits>

namespace duet {

namespace {

// For what is an int, and for counts that are multiplied with one another.
constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

std::optional<DataConfig> read_data(const ConfigNode& node, bool train) {
  if (!node.exists() || node.is_null()) return std::nullopt;
  DataConfig data;
  data.node = node;
  data.loader.batch_size = node.read_int("batch_size", data.loader.batch_size, 1, kMaxInt);
  data.loader.num_workers = static_cast<int>(node.read_int("num_workers", data.loader.num_workers, 0, 1024));
  data.loader.prefetch = static_cast<int>(node.read_int("prefetch", data.loader.prefetch, 1, 1024));
  data.loader.drop_last = node.read<bool>("drop_last", false);
  // Page-locked memory only serves copies to a GPU; the builder turns it off without one.
  data.loader.pin_memory = node.read<bool>("pin_memory", true);
  data.shuffle = node.read<bool>("shuffle", train);
  const std::string sampler = node.read_choice("sampler", "default", {"default", "infinite"});
  data.infinite = sampler == "infinite";
  if (data.infinite && !train) node.fail("sampler", "is infinite, expected default: an evaluation must end");
  node.need<std::string>("type");
  node.check_later();
  return data;
}

void read_loop(const ConfigNode& node, LoopOptions& loop) {
  loop.max_updates = node.read_int("max_updates", loop.max_updates, 0, kMaxInt);
  loop.max_epochs = node.read_int("max_epochs", loop.max_epochs, 0, kMaxInt);
  loop.accumulate = node.read_int("accumulate", loop.accumulate, 1, kMaxInt);
  loop.val_interval = node.read_int("val_interval", loop.val_interval, 0, kMaxInt);
}

void read_graph(const ConfigNode& node, GraphOptions& graph) {
  const std::string fallback = node.read_choice("fallback", "auto", {"auto", "strict", "eager"});
  graph.fallback = fallback == "strict" ? Fallback::kStrict : fallback == "eager" ? Fallback::kEager : Fallback::kAuto;
  graph.cache_bytes = node.read_bytes("cache_bytes", graph.cache_bytes);
  graph.verify_interval = node.read_int("verify_interval", graph.verify_interval, 0);
  const std::string fuse = node.read<std::string>("fuse", "exact");
  if (fuse != "exact" && fuse != "off") {
    node.fail("fuse", "is '" + fuse + "', expected exact or off: passes that change numerics are not available in this version");
  }
  graph.fuse = fuse == "off" ? Fuse::kOff : Fuse::kExact;
  node.located([&] { graph.validate(); });
}

// Whether default_hooks keeps the hook `key`: null removes it. Its type may be written out.
bool keeps_hook(const ConfigNode& hooks, const std::string& key, const std::string& type) {
  const ConfigNode node = hooks.child(key);
  if (node.is_null()) return false;
  const std::optional<std::string> found = node.find<std::string>("type");
  if (found && *found != type) {
    node.fail("type", "is '" + *found + "', expected " + type + "; other hooks are not available in this version");
  }
  return true;
}

// A misspelt metric would otherwise end the run at its first validation.
void check_best_metric(const ConfigNode& node, const RunConfig& config) {
  const std::string& best = config.hooks.checkpoint.save_best;
  std::vector<std::string> names = {"auto", "loss"};
  for (const MetricConfig& metric : config.metrics) {
    if (metric.type == "Accuracy") names.emplace_back("accuracy");
  }
  if (!best.empty() && std::find(names.begin(), names.end(), best) == names.end()) {
    node.fail("save_best", c10::str("is '", best, "', expected null, auto or a metric of evaluator; ",
                                    known_and_nearest(best, names)));
  }
}

void read_checkpoint_hook(const ConfigNode& node, RunConfig& config) {
  CheckpointHookOptions& checkpoint = config.hooks.checkpoint;
  checkpoint.interval = node.read_int("interval", checkpoint.interval, 0, kMaxInt);
  checkpoint.max_keep = static_cast<int>(node.read_int("max_keep", checkpoint.max_keep, 1, kMaxInt));
  checkpoint.save_best = node.find<std::string>("save_best").value_or("");
  checkpoint.save_last = node.read<bool>("save_last", checkpoint.save_last);
  check_best_metric(node, config);
  if (node.find<std::string>("rule")) checkpoint.rule = node.read_choice("rule", "", {"greater", "less"});
  config.checkpoint_by_epoch = node.read<bool>("by_epoch", false);
  node.located([&] { checkpoint.validate(); });
}

void read_hooks(const ConfigNode& root, RunConfig& config) {
  const ConfigNode node = root.child("default_hooks");
  config.hooks.timer = keeps_hook(node, "timer", "IterTimerHook");
  config.hooks.log = keeps_hook(node, "logger", "LoggerHook");
  if (config.hooks.log) {
    const ConfigNode logger = node.child("logger");
    config.hooks.logger.interval = logger.read_int("interval", config.hooks.logger.interval, 1);
    config.hooks.logger.file = logger.find<std::string>("file").value_or("");
    config.hooks.logger.progress = logger.read<bool>("progress", config.hooks.logger.progress);
    logger.located([&] { config.hooks.logger.validate(); });
  }
  if (!keeps_hook(node, "param_scheduler", "ParamSchedulerHook") && !config.schedules.empty()) {
    node.fail("param_scheduler",
              "is null, which would leave the schedules of param_scheduler without effect; remove one");
  }
  config.hooks.save = keeps_hook(node, "checkpoint", "CheckpointHook");
  if (config.hooks.save) read_checkpoint_hook(node.child("checkpoint"), config);
  keeps_hook(node, "sampler_seed", "DistSamplerSeedHook");  // the samplers know their epoch without a hook
  if (keeps_hook(node, "visualization", "VisualizationHook") &&
      node.child("visualization").find<bool>("draw").value_or(false)) {
    node.child("visualization").fail("draw", "is true, but drawing is not available in this version; set false");
  }
  for (const ConfigNode& hook : root.list("custom_hooks")) {
    hook.need<std::string>("type");
    hook.check_later();
    config.custom_hooks.push_back(hook);
  }
}

std::vector<MetricConfig> read_metrics(const ConfigNode& root) {
  std::vector<MetricConfig> metrics;
  for (const ConfigNode& node : root.one_or_list("evaluator")) {
    MetricConfig metric;
    metric.type = node.read_choice("type", "", {"Accuracy", "MeanLoss"});
    if (metric.type == "Accuracy") {
      metric.target = node.read<std::string>("target", "target");
      metric.prediction = node.read<std::string>("prediction", "prediction");
    }
    metrics.push_back(metric);
  }
  return metrics;
}

}  // namespace

RunConfig parse_run_config(const ConfigNode& root, const std::string& name) {
  RunConfig config;
  config.root = root;
  config.work_dir = root.read<std::string>("work_dir", "runs/" + name);
  if (config.work_dir.empty()) root.fail("work_dir", "is empty, expected a folder; name one or remove the key");
  config.mode = root.read_choice("mode", "eager", {"eager", "graph"});
  config.seed = static_cast<uint64_t>(root.read_int("seed", 0, 0));
  config.trainer.device = root.read<std::string>("device", config.trainer.device);
  root.child("device").located([&] { parse_device(config.trainer.device); });

  config.model = root.child("model");
  if (!config.model.exists() || config.model.is_null()) root.fail_missing("model", "add model: {type: ...}");
  config.model.need<std::string>("type");
  config.model.check_later();

  const ConfigNode data = root.child("data");
  config.train = read_data(data.child("train"), true);
  config.val = read_data(data.child("val"), false);
  config.test = read_data(data.child("test"), false);

  read_loop(root.child("trainer"), config.trainer.loop);
  config.trainer.loop.work_dir = config.work_dir;
  read_optim_wrapper(root.child("optim_wrapper"), config.trainer);
  config.schedules = read_schedules(root);
  config.metrics = read_metrics(root);
  read_hooks(root, config);
  read_graph(root.child("graph"), config.graph);
  root.reject_unknown();
  return config;
}

}  // namespace duet
