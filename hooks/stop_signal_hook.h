#pragma once

#include <memory>
#include <string>
#include "../core/hook.h"

namespace duet {

// While one lives, SIGINT, SIGTERM, SIGUSR1 and SIGHUP only leave a note, however many come; but a second SIGINT ends
// the process at once with 128 + its number, as shells report it. The last one to go gives the handlers back that were
// there before. Signals that were ignored before (nohup) stay ignored.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // 0, or the signal that asked to stop since the first of those alive was made.
  static int received();
  // "SIGTERM"
  static std::string name(int signal);
};

// Interrupts training when a signal asks for it: after the step that runs, or between two batches of a validation,
// which the resume then makes up for. The state is saved by CheckpointHook at the end, and BaseTrainer::outcome() is
// kInterrupted. A signal that comes while the loop waits for data is seen after the step that the data was for.
class StopSignalHook : public Hook {
 public:
  std::string name() const override { return "stop_signal"; }
  int priority() const override { return kVeryHigh; }

  void before_run(TrainContext& context) override;
  void before_train(TrainContext& context) override { poll(context); }  // a signal during set-up
  void after_train_iter(TrainContext& context) override { poll(context); }
  void before_val_epoch(TrainContext& context) override { poll(context); }
  void after_val_iter(TrainContext& context) override { poll(context); }
  void after_run(TrainContext& context) override;

 private:
  static void poll(TrainContext& context);

  std::unique_ptr<StopSignals> signals_;  // from before_run to after_run
};

}  // namespace duet
