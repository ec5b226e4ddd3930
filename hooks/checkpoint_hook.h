#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "../base/options.h"
#include "../checkpoint/checkpoint.h"
#include "../core/hook.h"

namespace duet {

struct CheckpointHookOptions {
  int64_t interval = 500;    // steps between saves; 0: only at the end
  double interval_time = 0;  // seconds between saves, counted from the last one; 0: they go by steps alone
  int64_t save_begin = 0;    // no save by interval before this step; the interval counts from it
  int max_keep = -1;         // older ones are deleted, the best one never; -1: keep all
  // Metrics to keep the best of, one checkpoint each; "auto": what the first metric names first; empty: none.
  std::vector<std::string> save_best{};
  int save_top_k = 1;              // how many of the best are kept by each metric
  bool best_weights_only = false;  // the best ones are files of weights alone, those that were evaluated
  bool save_last = true;           // save when training ends or is stopped, though not one that failed or diverged
  std::string rule = "";        // "greater" or "less" is better; empty: by the metric's name, as metrics/metric.h says
  bool need_work_dir = true;    // false: without a work_dir it saves nothing, instead of an error
  bool async = true;            // a thread writes, while training goes on: costs the memory of a copy on the host
  int64_t verify_interval = 0;  // every so many saves what was written is read back from the disk; 0: never
  // What of the state is worth publishing: "model", "hooks.ema.weights". Not empty: at the end of the run the tensors
  // below these names, of the last checkpoint and of the best ones, go to files of their own in <work_dir>/published.
  std::vector<std::string> published_keys{};
  // Checkpoints go to <out_dir>/<name of work_dir>/checkpoints, and <work_dir>/checkpoints is a link to there, so that
  // whoever looks in the work dir finds them. Empty: they lie in the work dir.
  std::string out_dir{};

  static const OptionFields& fields();
};

// Saves the whole state of the trainer under <work_dir>/checkpoints. It runs last, so that a checkpoint holds what the
// other hooks made of the step. With `interval_time` the clock of rank 0 counts, and all ranks save after the step that
// follows.
//
// A save that a hook refuses (SaveRefused: weights that are not finite) is logged and left out, the run's last one too.
// A save that fails (a full disk) is logged and tried again at the next one: a long run is worth more than one
// checkpoint. If the last save of a run failed, and the one at its end fails too, that error ends the run.
// With `async` training goes on as soon as the state is copied. One save at a time is written; the next one, a
// validation that may make a new best checkpoint, the end of the run and whatever reads checkpoints wait for it. The
// last one of a run is written at once.
//
// The best checkpoint is the first of strictly best score, never one of NaN or infinity; the file "best" beside the
// checkpoints names its folder, and its record is in every checkpoint, its own included; a resume sets that file right
// if the process died between the two. One that is gone (deleted, set aside by a rollback) is no measure any more. Of
// several metrics each has its best checkpoint and a file that names it, "best_<metric>"; "best" is that of the first.
// save_top_k: the k best are kept, and become better one by one; the files that name the best name the very best.
// best_weights_only: "<work_dir>/checkpoints/step-<n>.safetensors", which `duet test` takes in the place of a
// checkpoint, of what was evaluated: the average, where a hook evaluates its own. No run resumes from it.
// published_keys: "<work_dir>/published/last-<8 digits of its hash>.safetensors", "best-..." or "best_<metric>-...";
// beside them the file of TorchScript or torch.export that the model came from, with these weights.
// It has a member for each occasion to save.
class CheckpointHook : public Hook {
 public:
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

  using Bests = std::vector<Best>;  // in the order of save_best

  std::vector<std::string> metrics_of(const TrainContext& context) const;
  std::string first_metric(const TrainContext& context) const;
  std::vector<std::string> files_of(const std::string& metric) const;
  void restore_pointers(const std::string& root) const;
  bool less_is_better(const std::string& metric) const;
  Bests very_best() const;  // of each metric one
  // The best ones by a metric with this result among them, if it is one of them; whether it is.
  bool enter(Bests& ranked, const Best& result) const;
  // Of those that the present step is the very best of.
  std::vector<std::string> files_of_best(int64_t step) const;
  // Of those that are not there any more: deleted, or set aside when the run went back.
  void forget_lost(const TrainContext& context);
  // Takes the results that are among the best into these, and returns them.
  Bests take_improved(const TrainContext& context);
  void announce(const Bests& improved, const TrainContext& context) const;
  void publish(const TrainContext& context) const;
  void propose_by_time(TrainContext& context);
  // A save that is written in the background.
  struct Pending {
    std::string path;
    Bests bests_before{};  // in force again if it fails
    Bests improved{};      // announced once it is written
  };
  std::string name_of_best(int64_t step) const;
  // Writes the weights that were evaluated.
  void save_weights(const TrainContext& context);
  // The path; empty: a hook refused.
  std::string save(TrainContext& context, const std::vector<std::string>& best, bool in_background);
  // false: it failed, or a hook refused.
  bool try_save(TrainContext& context, const std::vector<std::string>& best = {});
  // Of the checkpoint that names these, so that a run finds them: removes other weights but bests_, and tells hooks.
  void complete(const std::string& path, const Bests& named, TrainContext& context) const;
  // Waits for the save in the background, on all ranks, and notes if it failed.
  void settle_save(TrainContext& context);

  CheckpointHookOptions options_;
  std::optional<CheckpointStore> store_;  // while training, if there is something to save
  Bests bests_;
  std::chrono::steady_clock::time_point last_save_;  // or the begin of training
  int64_t refused_step_ = -1;                        // whose state was not worth saving
  int64_t saved_step_ = 0;                           // nothing newer than this to save
  bool failed_ = false;                              // the last save
  std::optional<Pending> pending_;                   // the same on all ranks
};

}  // namespace duet
