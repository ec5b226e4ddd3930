#pragma once

#include <duet/cli/config.h>
#include <duet/cli/optim_config.h>
#include <duet/cli/schedule_config.h>
#include <duet/core/data_loader.h>
#include <duet/graph/graph_options.h>
#include <duet/hooks/default_hooks.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace duet {

// One of data.train, data.val, data.test.
struct DataConfig {
  ConfigNode node;  // type and the dataset's own keys, checked when the dataset is built
  DataLoaderOptions loader;
  bool shuffle = false;
  bool infinite = false;  // sampler: infinite
};

// One entry of evaluator.
struct MetricConfig {
  std::string type;
  std::string target, prediction;
};

// A whole config with every value checked that can be checked before models and data are built.
struct RunConfig {
  ConfigNode root;
  std::string work_dir;
  std::string mode;
  uint64_t seed = 0;
  ConfigNode model;  // checked when the model is built
  std::optional<DataConfig> train, val, test;
  TrainerOptions trainer;  // loop.work_dir and device included
  GraphOptions graph;
  std::vector<ScheduleConfig> schedules;
  DefaultHooksOptions hooks;  // without param_scheduler, which needs the length of an epoch
  bool checkpoint_by_epoch = false;
  std::vector<ConfigNode> custom_hooks;  // checked when the hooks are built
  std::vector<MetricConfig> metrics;
};

// Throws ConfigError naming place, path and expectation for the first thing that is wrong. `name` is what the
// work_dir is called if the config names none: runs/<name>.
RunConfig parse_run_config(const ConfigNode& root, const std::string& name);

}  // namespace duet
