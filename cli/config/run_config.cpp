#include "cli/config/run_config.h"
#include <algorithm>
#include <limits>
#include <c10/util/StringUtil.h>
#include "base/detail/nearest.h"
#include "base/device.h"
#include "base/error.h"
#include "cli/config/config_options.h"
#include "cli/config/distributed_config.h"

namespace duet {

namespace {

std::optional<DataConfig> read_data(const ConfigNode& node, bool train) {
  if (!node.exists() || node.is_null()) return std::nullopt;
  DataConfig data;
  data.node = node;
  data.loader.pin_memory = true;  // only serves copies to a GPU; the builder turns it off without one
  data.shuffle = train;
  read_fields(node, DataConfig::fields(), &data);
  data.infinite = data.sampler == "infinite";
  if (data.infinite && !train) node.fail("sampler", "is infinite, expected default: an evaluation must end");
  node.need<std::string>("type");
  node.check_later();
  return data;
}

}  // namespace

const OptionFields& DataConfig::fields() {
  using O = DataConfig;
  static const OptionFields kFields = OptionFields::of<O>("DataConfig", [](const FieldAdder<O>& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.loader.*member; }; };
    using L = DataLoaderOptions;
    add("batch_size", of(&L::batch_size), "samples of a micro-batch").in(at_least(1)).called("integer, per process");
    add("num_workers", of(&L::num_workers), "threads that read ahead").in(between(0, 1024));
    add("prefetch", of(&L::prefetch), "batches ahead per worker").in(between(1, 1024));
    add("drop_last", of(&L::drop_last), "leaves out a last batch that is not full");
    add("pin_memory", of(&L::pin_memory), "page-locked memory, for copies to a GPU");
    add("shuffle", &O::shuffle, "another order in every epoch");
    add("sampler", &O::sampler, "infinite: without epochs").one_of({"default", "infinite"});
    add.key("type", "text", "the dataset").needed();
  });
  return kFields;
}

const OptionFields& RunConfig::fields() {
  using O = RunConfig;
  static const OptionFields kFields = OptionFields::of<O>("RunConfig", [](const FieldAdder<O>& add) {
    add("work_dir", &O::work_dir, "where everything is written");
    add("mode", &O::mode, "how steps are run").one_of({"eager", "graph"});
    add("seed", &O::seed, "of weights, data order and dropout").in(between(0, 9.2e18));
    add(
        "device", [](O& o) -> auto& { return o.trainer.device; }, "what it runs on")
        .called("auto, cpu, cuda, cuda:<index>");
  });
  return kFields;
}

RunConfig parse_run_config(const ConfigNode& root, const std::string& name) {
  RunConfig config;
  config.root = root;
  config.work_dir = "runs/" + name;
  read_fields(root, RunConfig::fields(), &config);
  if (config.work_dir.empty()) root.fail("work_dir", "is empty, expected a folder; name one or remove the key");
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
  config.hooks = read_hooks(root);
  config.graph = read_options<GraphOptions>(root.child("graph"));
  root.child("graph").located([&] { config.graph.validate(); });
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
