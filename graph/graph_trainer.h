#pragma once

#include <memory>
#include <string>
#include <vector>
#include "../core/trainer.h"
#include "graph_options.h"

namespace duet {

class GraphExecutor;

// Compiles model, loss, backward, clipping and optimizer into one captured step per signature and replays it, and the
// forward passes of evaluations and predictions likewise.
// The first step of a signature runs eager, the second is recorded (both are real steps), the rest are replayed:
// bit-identical to EagerTrainer.
class GraphTrainer : public BaseTrainer {
 public:
  explicit GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {}, const GraphOptions& graph = {});

  // One entry per signature seen, in order of first sight: those of steps, then of validations and of predictions.
  std::vector<SignatureReport> report() const;
  // Steps that ran eager, for whatever reason, and replays.
  int64_t eager_steps() const;
  int64_t replays() const;
  // The captured step of the latest step as text; empty if it was not captured.
  std::string program_text() const;

 private:
  GraphExecutor& graph() const;
};

}  // namespace duet
