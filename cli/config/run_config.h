#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "checkpoint/weights_file.h"
#include "cli/config/config_options.h"
#include "cli/config/hook_config.h"
#include "cli/config/metric_config.h"
#include "cli/config/optim_config.h"
#include "cli/config/schedule_config.h"
#include "data/data_loader.h"
#include "data/data_source.h"
#include "distributed/communicator.h"
#include "graph/graph_options.h"

namespace duet {

// `load_from`: weights that a run starts from; its counters, optimizer and data start anew.
struct LoadFromConfig {
  WeightsSource source;
  bool strict = false;  // every tensor must be there, with its shape and type
  static const OptionFields& fields();
};

// A limit on the micro-batches of an epoch or a pass as a config writes it: a count, or a share of them.
struct BatchLimit {
  ConfigNode node;  // the map with the key
  std::string key;
  int64_t count = 0;  // 0: no count
  double share = 0;   // 0: no share
  int64_t most = 0;   // what either comes to is cut to this; 0: it is not

  // As a count, cut to `most`; 0: no limit. Throws ConfigError for a share of a number that is not known, or if it is
  // not one batch.
  int64_t batches_of(const DataSource& data) const;

 private:
  int64_t as_written(const DataSource& data) const;
};

struct BatchLimits {
  BatchLimit train, val, test, predict;
};

// One of data.train, data.val, data.test, data.predict, or a named dataset of data.val or data.test.
struct DataConfig {
  std::string name;  // empty: the only one there
  ConfigNode node;   // type and the dataset's own keys, checked when the dataset is built
  DataLoaderOptions loader;
  std::string loader_type = "default";  // or registered
  bool shuffle = false;
  std::string sampler = "default";    // one of builtin_samplers(), or registered
  std::vector<double> class_weights;  // of sampler weighted
  std::string sample_weights;         // likewise: a tensor of the dataset or a .npy file; empty: class_weights
  int64_t samples_per_epoch = 0;      // of samplers that draw with replacement; 0: the dataset's size
  bool infinite = false;              // no epochs
  static const OptionFields& fields();
};

// "default", "infinite", ...
const std::vector<std::string>& builtin_samplers();
// The keys of DataConfig for samplers that draw with replacement, which no evaluation takes.
const std::vector<std::string>& keys_of_drawing();

// A whole config with every value checked that can be checked before models and data are built.
struct RunConfig {
  ConfigNode root;
  std::string work_dir;
  std::string mode = "eager";
  uint64_t seed = 0;
  ConfigNode model;  // checked when the model is built
  std::optional<LoadFromConfig> load_from;
  std::optional<DataConfig> train, predict;
  std::vector<DataConfig> val, test;  // several have names
  TrainerOptions trainer;             // work_dir and device included, loop's limits on batches not
  BatchLimits limits;
  int64_t dry_run = 0;  // steps of a run that only tries everything out; 0: a real one
  GraphOptions graph;
  ConnectOptions connect;
  Launch launch;  // of a command that several processes may run together
  std::vector<ScheduleConfig> schedules;
  std::vector<HookConfig> hooks;           // checked when they are built
  std::vector<MetricConfig> metrics;       // evaluator
  std::vector<MetricConfig> test_metrics;  // test_evaluator, or the same
  bool scratch = false;                    // work_dir is thrown away after the run
  static const OptionFields& fields();     // of its single values

  // The processes that run this together; null: this one alone.
  Communicator& communicator() const { return *trainer.distributed.communicator; }
  bool is_main() const { return launch.rank == 0; }  // which writes and speaks for all
};

// Throws ConfigError naming place, path and expectation for the first thing that is wrong. `name` is what the
// work_dir is called if the config names none: runs/<name>. `world_size`: the processes that a step is shared by.
RunConfig parse_run_config(const ConfigNode& root, const std::string& name, int64_t world_size = 1);

// LiBai's arithmetic: with trainer.global_batch_size sets the one of batch_size and accumulate that is not given, or
// batch_size, but not in the config, which is saved. Throws ConfigError if that is not whole.
void fit_batch_size(const ConfigNode& root, int64_t world_size, RunConfig& config);
// `auto_scale_lr` as mmengine's, for steps of `batch_size` samples over all processes and micro-batches: all learning
// rates times batch_size / base_batch_size.
void scale_learning_rates(const ConfigNode& root, int64_t batch_size, TrainerOptions& trainer);

// What a validation of the config reports: "loss", or "clean/loss" of a dataset that has a name.
std::vector<std::string> val_metric_names(const RunConfig& config);

// The same run with `folder` for all that it writes.
RunConfig in_scratch(RunConfig config, const std::string& folder);

// Sets load_from to `path`, for --load-from. Other keys of a map stay.
void override_load_from(ConfigNode& root, const std::string& path);

}  // namespace duet
