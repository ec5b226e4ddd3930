#include "cli/config/run_config.h"

#include <c10/util/StringUtil.h>
#include "cli/config/distributed_config.h"
#include "base/device.h"
#include "base/error.h"
#include "base/detail/nearest.h"

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
  data.node.note_kind("batch_size", "integer, per process");
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

void read_graph(const ConfigNode& node, GraphOptions& graph) {
  const std::string fallback = node.read_choice("fallback", "auto", {"auto", "strict", "eager"});
  graph.fallback = fallback == "strict" ? Fallback::kStrict : fallback == "eager" ? Fallback::kEager : Fallback::kAuto;
  graph.cache_bytes = node.read_bytes("cache_bytes", graph.cache_bytes);
  graph.verify_interval = node.read_int("verify_interval", graph.verify_interval, 0);
  const std::string fuse = node.read<std::string>("fuse", "exact");
  node.note_kind("fuse", "exact, off");
  if (fuse != "exact" && fuse != "off") {
    node.fail_value("fuse", "exact or off: passes that change numerics are not available in this version");
  }
  graph.fuse = fuse == "off" ? Fuse::kOff : Fuse::kExact;
  node.located([&] { graph.validate(); });
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
  root.note_kind("device", "auto, cpu, cuda, cuda:<index>");
  root.child("device").located([&] { parse_device(config.trainer.device); });

  config.model = root.child("model");
  if (!config.model.exists() || config.model.is_null()) root.fail_missing("model", "add model: {type: ...}");
  config.model.need<std::string>("type");
  config.model.check_later();

  config.load_from = read_load_from(root);

  const ConfigNode data = root.child("data");
  config.train = read_data(data.child("train"), true);
  config.val = read_data(data.child("val"), false);
  config.test = read_data(data.child("test"), false);
  config.predict = read_data(data.child("predict"), false);

  const LoopConfig loop = read_loop(root.child("trainer"));
  config.trainer.loop = loop.loop;
  config.limits = loop.limits;
  config.dry_run = loop.dry_run;
  config.trainer.loop.work_dir = config.work_dir;
  read_optim_wrapper(root.child("optim_wrapper"), config.trainer);
  config.schedules = read_schedules(root);
  config.metrics = read_metrics(root);
  config.test_metrics = read_test_metrics(root, config.metrics);
  config.hooks = read_hook_lists(root);
  read_graph(root.child("graph"), config.graph);
  read_distributed(root.child("distributed"), config.trainer.distributed, config.connect);
  check_monitors(config.schedules, metric_names(config.metrics));
  check_builtin_hooks(config.hooks, metric_names(config.metrics));
  root.reject_unknown();
  return config;
}

RunConfig in_scratch(RunConfig config, const std::string& folder) {
  config.work_dir = config.trainer.loop.work_dir = folder;
  config.scratch = true;
  return config;
}

}  // namespace duet
