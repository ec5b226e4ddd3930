#pragma once

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include "../core/hook.h"

namespace duet {

// What asks a run to stop: a terminal and SLURM (the first four), SGE and LSF (SIGUSR2), and a limit of CPU time.
inline constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGUSR2, SIGXCPU};

// While one lives, these signals only leave a note, however many come; but a
// second SIGINT ends the process at once with 128 + its number, as shells report it. The last one to go gives the
// handlers back that were there before. Signals that were ignored before (nohup) stay ignored.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // 0, or the signal that asked to stop since the first of those alive was made.
  static int received();
  // Whether one lives.
  static bool are_watched();
  // "SIGTERM"
  static std::string name(int signal);
};

// Interrupts training when a signal asks for it: after the step that runs, between two batches of a validation, which
// the resume then makes up for, or in a wait for data that can be told to stop (DataSource::set_should_stop), as of a
// DataLoader. The state is saved by CheckpointHook at the end, and BaseTrainer::outcome() is kInterrupted.
class StopSignalHook : public Hook {
 public:
  std::string name() const override { return "stop_signal"; }
  int priority() const override { return kVeryHigh; }

  void before_run(TrainContext& context) override;
  void after_run(TrainContext& context) override;

 private:
  std::unique_ptr<StopSignals> signals_;  // from before_run to after_run
};

}  // namespace duet
