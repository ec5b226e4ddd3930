#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "checkpoint/checkpoint.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "core/trainer.h"
#include "data/data_source.h"

namespace duet {

class GraphTrainer;

// What a run owns. Members are declared so that the trainer goes before the data it reads.
struct Run {
  std::shared_ptr<const Dataset> train_data;                        // null for a stream, as those below
  std::vector<std::shared_ptr<const Dataset>> val_data, test_data;  // in the order of the config
  std::vector<std::string> classes;  // names that the weights to evaluate were trained with, by number; empty: unknown
  std::unique_ptr<DataSource> train;
  std::vector<std::unique_ptr<DataSource>> val, test;
  std::unique_ptr<BaseTrainer> trainer;
  GraphTrainer* graph = nullptr;  // `trainer` in graph mode
  int64_t steps_per_epoch = 0;    // 0: unknown
};

// The datasets of data.train and data.val, which runs may share. Throws ConfigError if there is no data.train.
void read_training_data(const RunConfig& config, Run& run);
// Throws ConfigError unless the numbers of the training data mean what they meant to the run `trained`, which has saved
// `checkpoint` (Dataset::encoding()).
void require_encoding(const RunConfig& config, const Run& run, const RunIdentity& trained,
                      const std::string& checkpoint);
// Of data whose encoding is not known to the checkpoint that is used with it. Null: a stream.
void warn_of_own_encoding(const Dataset* data, const std::string& checkpoint);
// What `sampler` and the keys beside it say: the order of all processes.
std::unique_ptr<Sampler> build_sampler(const Dataset& dataset, const DataConfig& data, uint64_t seed);
// The loaders of these datasets, and the length of an epoch. Of several processes each reads its share.
void build_loaders(const RunConfig& config, Run& run);

// Model and trainer in `mode`, with metrics and without hooks, after seeding: both modes start from the same weights.
// `loop` replaces the config's limits. All processes of the run call it together.
void build_trainer(const RunConfig& config, const std::string& mode, const LoopOptions& loop, Run& run);

// Steps of a run with these limits, whichever comes first; 0: no limit.
int64_t planned_steps(const LoopOptions& loop, int64_t steps_per_epoch);

// Throws ConfigError if they do not fit together or into the run.
std::vector<Schedule> schedules_of(const RunConfig& config, const Run& run);

// The limits of the config on batches, as counts of those that the loaders have.
LoopOptions limited_loop(const RunConfig& config, const Run& run);

// What the config's hooks may ask for.
HookContext hook_context(const RunConfig& config, const Run& run);
// All hooks of the config.
void add_hooks(const RunConfig& config, Run& run);

// Gives the model the weights that load_from names, if it is set. All processes of the run call it together.
void load_start_weights(const RunConfig& config, BaseTrainer& trainer);

// Everything for `duet train`, built by all processes of the run together. `classes`: of the checkpoint to go on from,
// which must be those of the data (none: unknown).
Run build_training(const RunConfig& config, const std::vector<std::string>& classes = {});

// A run in `mode` on the datasets of `data`, with its hooks and start weights, for a MeasureHook to end after `steps`.
Run build_measured_run(const RunConfig& config, const std::string& mode, const Run& data, int64_t steps);

// Trains on `data`, with the run's validations.
void train_on(DataSource& data, const RunConfig& config, Run& run);

// For testing and predicting on `data`, as run.test; the weights are those that the model was made with. With `output`
// a hook writes predictions into that folder. `trained`: the run that trained the weights, whose classes and encoding
// hold for all data; with an encoding data.train is not read. All processes of the run call it together.
Run build_evaluation(const RunConfig& config, const std::vector<DataConfig>& data, const std::string& output = "",
                     const RunIdentity& trained = {});
// The metrics on run.test, which was built of `data`.
MetricValues test_on(const std::vector<DataConfig>& data, Run& run);

}  // namespace duet
