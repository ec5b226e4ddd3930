#include <algorithm>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/hook_config.h"
#include "hooks/logger_hook.h"

namespace duet {

// Where config keys become the options of LoggerHook: those of mmengine's LoggerHook and LogProcessor in one map, and
// the sinks in the place of its vis_backends.

namespace {

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
  LogStatistic statistic;
  statistic.data_src = node.need<std::string>("data_src");
  statistic.method_name =
      node.read_choice("method_name", statistic.method_name, {"mean", "median", "min", "max", "current"});
  statistic.window_size = read_window_size(node, statistic.window_size);
  statistic.log_name = node.find<std::string>("log_name").value_or("");
  node.located([&] { statistic.validate(); });
  return statistic;
}

// Empty for its default, and always in a scratch run.
std::string output_of(const ConfigNode& node, const std::string& key, const HookContext& context) {
  const std::string path = node.find<std::string>(key).value_or("");
  return context.scratch ? "" : path;
}

// A sink of this type alone has a key of its own.
void read_place(const ConfigNode& node, const HookContext& context, LogSinkOptions& sink) {
  if (sink.type == "jsonl") sink.file = output_of(node, "file", context);
  if (sink.type == "tensorboard" || sink.type == "wandb") sink.folder = output_of(node, "folder", context);
  if (sink.type != "wandb") return;
  sink.project = node.find<std::string>("project").value_or("");
  sink.name = node.find<std::string>("name").value_or("");
  sink.entity = node.find<std::string>("entity").value_or("");
  sink.id = node.find<std::string>("id").value_or("");
}

const std::vector<std::string>& sink_types() {
  static const std::vector<std::string> kTypes = {"terminal", "jsonl", "tensorboard", "wandb"};
  return kTypes;
}

// A map with its type, or the type's name alone.
LogSinkOptions read_sink(const ConfigNode& node, const HookContext& context) {
  if (node.kind() == ConfigNode::Kind::kValue) {
    const auto& types = sink_types();
    if (std::find(types.begin(), types.end(), node.text()) != types.end()) return {.type = node.text()};
    node.fail_value("", "a sink; " + known_and_nearest(node.text(), types));
  }
  LogSinkOptions sink;
  node.need<std::string>("type");
  sink.type = node.read_choice("type", "", sink_types());
  read_place(node, context, sink);
  node.located([&] { sink.validate(); });
  return sink;
}

std::vector<LogSinkOptions> read_sinks(const ConfigNode& node, const HookContext& context,
                                       const std::vector<LogSinkOptions>& otherwise) {
  if (!node.child("sinks").exists() || node.child("sinks").is_null()) return otherwise;
  std::vector<LogSinkOptions> sinks;
  for (const ConfigNode& item : node.list("sinks")) sinks.push_back(read_sink(item, context));
  return sinks;
}

std::unique_ptr<LoggerHook> logger(ConfigNode& node, HookContext& context) {
  auto options = read_options<LoggerHookOptions>(node);
  for (const ConfigNode& item : node.list("custom_cfg")) options.window.custom_cfg.push_back(read_statistic(item));
  options.sinks = read_sinks(node, context, options.sinks);
  if (context.scratch) options.file.clear();
  node.reject_unknown();
  // A run of its own, which does not belong among the steps of the training's files.
  if (context.evaluates) options.sinks = {{.type = "terminal"}};
  return std::make_unique<LoggerHook>(options);
}

}  // namespace

void register_logger_hook_type() { register_hook("LoggerHook", logger, AnyOptions(LoggerHookOptions())); }

}  // namespace duet
