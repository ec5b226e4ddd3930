#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include "../base/options.h"
#include "../checkpoint/checkpoint.h"
#include "../core/hook.h"

namespace duet {

struct CheckpointHookOptions {
  int64_t interval = 500;      // steps between saves; 0: only at the end
  int64_t save_begin = 0;      // no save by interval before this step; the interval counts from it
  int max_keep = -1;           // older ones are deleted, the best one never; -1: keep all
  std::string save_best = "";  // metric to keep the best of; "auto": what the first metric names first; empty: none
  bool save_last = true;       // save when training ends or is stopped, though not after an error
  std::string rule = "";       // "greater" or "less" is better; empty: by the metric's name, as metrics/metric.h says
  bool need_work_dir = true;   // false: without a work_dir it saves nothing, instead of an error

  static const OptionFields& fields();
};

// Saves the whole state of the trainer under <work_dir>/checkpoints. It runs last, so that a checkpoint holds what
// the other hooks made of the step.
//
// A save that a hook refuses (SaveRefused: weights that are not finite) is logged and left out, the run's last one too.
// A save that fails (a full disk) is logged and tried again at the next one: a long run is worth more than
// one checkpoint. If the last save of a run failed, and the one at its end fails too, that error ends the run.
// The best checkpoint is the first of strictly best score, never one of NaN or infinity; the file "best" beside the
// checkpoints names its folder, and its record is in every checkpoint, its own included; a resume sets that file right
// if the process died between the two.
class CheckpointHook : public Hook {
 public:
  // Throws ConfigError for options out of range.
  explicit CheckpointHook(CheckpointHookOptions options = {});

  std::string name() const override { return "checkpoint"; }
  int priority() const override { return kVeryLow; }

  // Throws ConfigError if there is no work_dir, or none that can be written.
  void before_train(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  // Throws ConfigError if the metric to compare is not among the results.
  // Not at after_val_epoch: the best checkpoint holds what every hook made of the results.
  void after_val(TrainContext& context) override;
  void after_load_checkpoint(TrainContext& context) override;
  void after_train(TrainContext& context) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Best {
    std::string metric;
    double score = 0;
    std::string folder;
  };

  std::string metric_of(const TrainContext& context);
  std::string first_metric(const TrainContext& context) const;
  void restore_pointer(const std::string& root) const;
  bool less_is_better(const std::string& metric) const;
  bool improves(const std::string& metric, double score) const;
  // false: a hook refused.
  bool save(const TrainContext& context, CheckpointRank rank = CheckpointRank::kAny);
  // false: also if it failed.
  bool try_save(const TrainContext& context, CheckpointRank rank = CheckpointRank::kAny);

  CheckpointHookOptions options_;
  std::optional<CheckpointStore> store_;  // while training, if there is something to save
  std::optional<Best> best_;
  std::string auto_metric_;    // what "auto" was found to mean
  int64_t refused_step_ = -1;  // whose state was not worth saving
  int64_t saved_step_ = 0;     // nothing newer than this to save
  bool failed_ = false;        // the last save
};

}  // namespace duet
