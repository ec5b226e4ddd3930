#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

class LossSpikes;
class NonFiniteTrace;

struct NaNGuardHookOptions {
  int64_t interval = 50;  // >= 1: steps between two looks, each of which waits for the device once
  // "raise": NonFiniteError; "stop": training ends, see RunControl::stop_diverged(); "warn": one warning per look;
  // "rollback": train() goes back to the newest checkpoint before that step and on with other data, see
  // RunControl::request_rollback();
  // "raise" in a loop of one's own, without a work dir, and at the end.
  std::string action = "raise";
  int64_t max_rollbacks = 3;  // >= 1, of a run; the next one raises
  bool trace = false;         // looks at every step, and runs one that is not finite again to name the op and module
  // What leads to `action` as well where steps may be skipped: so many looked at in a row changed no weight, or the
  // loss scale has fallen below this. 0: neither.
  int64_t max_consecutive_skips = 100;
  double min_loss_scale = 1e-4;
  // A loss whose modified z-score against the `spike_window` losses before it is above this; 0: losses may be as they
  // like. See LossSpikes.
  double spike_threshold = 0;
  int64_t spike_window = 100;         // >= 10
  std::string spike_action = "warn";  // or stop, raise, rollback, as `action`

  static const OptionFields& fields();
};

// Watches that loss and gradient norm (known if gradients are clipped) stay finite. Results are kept where they are,
// which costs nothing, and looked at every `interval` steps: the message names the step that was the first, and what is
// not finite by then. Weights, state of the optimizer (an infinite second moment freezes its weight while losses look
// well) and averages that are not finite are never saved: SaveRefused ("raise": NonFiniteError) leaves the checkpoints
// before as they are, and the run ends as `action` says, on all ranks where one alone has such weights.
//
// A run whose steps are skipped one after the other learns nothing: that ends it too, at `max_consecutive_skips`, and
// so does a loss scale that has fallen too far. "skipped_steps" is logged: how many have changed nothing.
//
// `trace` looks at loss and gradients after every step, and says where they stopped being finite: the first op, the
// module, the samples, with a file of the op's tensors and the batch in <work_dir>/non_finite. It keeps copies of what
// a step spoils (buffers; weights unless steps may be skipped) and runs the step again op by op with its random
// numbers; host code of the task that counts or draws numbers of its own goes on.
//
// What a step that is not finite does to the weights is TrainerOptions::non_finite's to say.
// Its members are counters and options of three guards that share one look at the loss.
class NaNGuardHook : public Hook {
 public:
  explicit NaNGuardHook(NaNGuardHookOptions options = {});
  ~NaNGuardHook() override;

  std::string name() const override { return "nan_guard"; }
  // Before timer (50), logger (60) and checkpoint (90): the log writes the last line of a run that is stopped here.
  int priority() const override { return kAboveNormal; }

  void before_train(TrainContext& context) override;
  void before_train_iter(TrainContext& context) override;
  void in_step(StepView& context) override;
  void after_train_iter(TrainContext& context) override;
  void before_save_checkpoint(TrainContext& context) override;
  void after_load_checkpoint(TrainContext& context) override;
  void on_exception(TrainContext& context) override;
  void after_train(TrainContext& context) override;

  // The losses that the next one is judged by: a resumed run finds the spikes that the unbroken one would.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void restart(const TrainContext& context);
  // Why the last step was not finite, empty if that is unknown; nothing if it was.
  std::optional<std::string> trace(TrainContext& context);
  void look(TrainContext& context, const std::optional<std::string>& cause = std::nullopt);
  void check_finite(TrainContext& context, const std::vector<double>& losses, const std::vector<double>& norms,
                    const std::optional<std::string>& cause);
  void check_skips(TrainContext& context);
  void check_spikes(TrainContext& context, const std::vector<double>& losses);
  void check_run(TrainContext& context);
  struct Finding {
    std::string text;      // for people, in full
    std::string reason;    // in short
    int64_t bad_step = 0;  // the first one that went wrong
  };
  // What `action` says of it.
  void act(TrainContext& context, const std::string& action, const Finding& found);
  // The same on all ranks where one of them finds it. Whether one did.
  bool act_together(TrainContext& context, bool is_found, const Finding& found);

  NaNGuardHookOptions options_;
  std::vector<at::Tensor> losses_, norms_;  // of the steps since watch_start_
  std::unique_ptr<LossSpikes> spikes_;      // null: not asked for
  int64_t watch_start_ = 0;                 // finished steps when this watch began
  int64_t applied_ = 0;                     // steps that changed the weights, when this watch began
  int64_t skipped_in_a_row_ = 0;
  int64_t run_start_ = 0, run_start_applied_ = 0;  // finished steps when this run began, and those that changed weights
  bool may_skip_ = false;                          // steps may be skipped
  bool scale_adapts_ = false;                      // and each that is lowers the loss scale
  std::unique_ptr<NonFiniteTrace> trace_;          // null: not asked for
  int64_t skipped_told_ = 0, rollbacks_ = 0;       // of this run
  bool can_go_back_ = true;                        // until it ends
};

}  // namespace duet
