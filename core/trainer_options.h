#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "../base/options.h"
#include "../distributed/communicator.h"
#include "../optim/groups/param_group.h"
#include "../optim/optimizers/optimizer_options.h"
#include "../optim/schedules/schedule.h"
#include "task.h"

namespace duet {

class DataSource;

struct LoopOptions {
  int64_t max_steps = 0;      // 0: no limit by steps
  int64_t max_epochs = 0;     // 0: no limit by epochs; one of the two limits must be set to call train()
  double max_seconds = 0;     // time that train() may take before it is interrupted, state saved; 0: no limit
  int64_t accumulate = 1;     // micro-batches per step; the last step of an epoch may have fewer
  int64_t val_interval = 0;   // steps between validations, and one after the run's last; 0: once per epoch
  bool val_by_epoch = false;  // val_interval counts epochs
  // Micro-batches of each validation dataset that a run which begins at step 0 evaluates before it, so that a mistake
  // shows at once: without hooks, results or a line of the log. 0: none, -1: all.
  int64_t num_sanity_val_steps = 0;
  // Micro-batches of an epoch or a pass; 0: all.
  int64_t limit_train_batches = 0, limit_val_batches = 0, limit_test_batches = 0, limit_predict_batches = 0;
  // Kernels that give the same bits in every run, for the whole process from here on, as
  // torch.use_deterministic_algorithms(True): an op that has none on a GPU is an error. On a CPU all are.
  bool deterministic = false;

  static const OptionFields& fields();
  // Steps that an epoch of `data` takes; 0: unknown.
  int64_t steps_per_epoch(const DataSource& data) const;
};

// The sweep of BaseTrainer::find_lr, as Lightning's lr_find.
struct LrFinderOptions {
  double min_lr = 1e-8, max_lr = 1;  // of the first and the last step; exponentially from one to the other
  int64_t num_training = 100;        // steps
  double early_stop_threshold = 4;   // ends it where the loss is more than so many times its least; 0: never
};

// What happens to a step whose loss or gradients are not finite. It is decided before weights or state change.
enum class NonFinite {
  kApply,  // nothing is looked at, as in a plain loop; with loss scaling: kSkip
  kSkip,   // the step changes nothing and does not count for schedules, EMA and optimizer
  kRaise,  // likewise, no later step is applied either, and the run ends with NonFiniteError
};

// What either trainer is built from.
struct TrainerOptions {
  OptimizerOptions optimizer{};                  // AdamW{.lr = 3e-4}, SGD{...}, ...
  std::vector<Schedule> schedules{};             // Linear{.end = 100}, Cosine{.begin = 100}, ...; none: lr stays
  std::optional<ClipGrad> clip_grad{};           // ClipNorm, ClipValue, ClipAdaptive, ClipWith
  bool log_grad_norm = false;                    // logs the norm without ClipNorm, too: a read of all gradients
  std::optional<at::ScalarType> amp{};           // at::kBFloat16, at::kHalf: autocast; none: full precision
  bool amp_eval = true;                          // evaluation and prediction under the autocast of training, too
  std::optional<LossScaleOptions> loss_scale{};  // none: dynamic with at::kHalf, else no scaling
  NonFinite non_finite = NonFinite::kApply;      // what a step with inf or NaN does
  // Puts the task's trainable parameters into groups with numbers of their own, each into one; empty: one group.
  std::function<ParamGroups(Task&, const OptimizerOptions&)> param_groups{};
  // Whether param_groups may leave trainable parameters out: the step gives these no gradient and does not change them.
  // For two networks of one task with a trainer each, such as a generator and a discriminator.
  bool allow_untrained = false;
  // Names of modules and parameters that are not trained, with * for any text: "backbone", "*.norm1". They get no
  // gradient, and modules stay in evaluation mode: fixed statistics, no dropout.
  std::vector<std::string> freeze{};
  LoopOptions loop{};
  std::string work_dir{};            // where hooks write; empty: nowhere
  DistributedOptions distributed{};  // several processes that train one model; none: this one alone
  std::string device = "auto";       // see parse_device; "auto" and "cuda" leave it to init_distributed()

  // Throws ConfigError naming the field and its range.
  void validate() const;
  at::Device resolved_device() const;
};

}  // namespace duet
