#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <c10/util/ArrayRef.h>
#include "core/detail/train_step.h"
#include "core/train_context.h"
#include "data/data_source.h"
#include "distributed/communicator.h"

namespace duet {

class TrainStep;

// Where in the loop a rank gives its report. Ranks at different places have different limits, intervals or hooks.
enum class SyncPlace : int32_t { kBeforeStep, kBetweenSteps, kAtStart, kBeforeData };

// What one rank tells the others. Without initializers: it is copied byte by byte.
struct StepReport {
  SyncPlace place;
  bool stops;  // a hook here wants to end training
  bool proposes_save;
  RunOutcome stop_outcome;  // in this way
  float data_seconds;       // that it waited for the step's data
  int32_t micro_batches;    // read for the step; 0: its data are used up
  int32_t weightless;       // of these: left out
  double weight;            // of these together
  int64_t samples;
  uint64_t fingerprint;  // TrainStep::fingerprint()
  int64_t epoch_steps;   // kAtStart: of an epoch; 0: unknown
};

// What all ranks do then; the same everywhere.
struct StepDecision {
  int64_t stopping_rank = -1;  // the first one that wants to stop; -1: none
  RunOutcome stop_outcome = RunOutcome::kNone;
  bool saves = false;       // some rank proposes it
  bool has_data = false;    // on some rank
  bool same_count = true;   // of micro-batches that are trained on
  double data_seconds = 0;  // the longest of all ranks
  double total_weight = 0;
  int64_t samples = 0;
  bool same_layout = true;
  int64_t epoch_steps =
      0;  // the longest of all ranks, since an epoch is over when no rank has anything left; 0: unknown
};

// What a trainer and those of the other ranks tell each other and agree on, on the host, all at the same places. In one
// process every answer is its own.
class RankSync {
 public:
  RankSync(TrainStep& step, TrainContext& context);

  bool is_main() const { return ranks_.is_main(); }
  bool is_single() const { return ranks_.is_single(); }
  // What this rank does now, for the others' message if they lose it.
  void report(const char* phase) { ranks_.report(context_.progress.step, phase); }
  // Throws ConfigError if the ranks are at different places.
  StepDecision exchange(StepReport report);
  // Before a step whose micro-batches are `own`: fills in what all ranks have together, and how it must be run.
  // `stops_count`: a rank that wants to stop ends training for all.
  StepDecision before_step(MicroBatches& own, bool stops_count);
  // Between steps: all stop for the first rank that wants to, and for its reason.
  void agree_on_stop();
  bool all_stop() const { return stop_agreed_ || (is_single() && !context_.control.stop_reason.empty()); }
  // The path that all ranks can take.
  StepPath common_path(StepPath own, bool ranks_need_same_path);
  // The run begins: longer waits are allowed until the first step is through.
  void start_run();
  void step_done() { ranks_.set_running(true); }
  // Of an epoch, or what is left of it; 0: unknown on some rank.
  int64_t agree_on_epoch(int64_t steps);

  // That what the ranks are about to read are parts of the same data, each rank its own: with other seeds, batch sizes
  // or ranks some samples would come twice and others never. `what` it is: "training". Throws ConfigError on all ranks.
  // Where no rank's source has a share each may hold what it likes.
  void check_data(const DataSource& data, const std::string& what);
  // Steps leave the same weights on all ranks. What else writes to them may not, and then no checkpoint is right: it
  // holds those of rank 0, and gradients are means over different models. Told once.
  void warn_of_drift();
  // Who is done with everything still waits for one whose last hooks fail.
  void end_run();

 private:
  StepDecision decide(c10::ArrayRef<StepReport> all) const;
  void adopt_stop(const StepDecision& decision);
  void warn_of_same_batches(const MicroBatches& own);
  void warn_if_alone();

  TrainStep& step_;
  TrainContext& context_;
  Communicator& ranks_;
  bool stop_agreed_ = false;
  bool same_layout_ = true;
  bool compared_first_batches_ = false, warned_that_alone_ = false, warned_of_drift_ = false;
};

}  // namespace duet
