#pragma once

#include <duet/core/trainer.h>
#include <duet/graph/graph_options.h>
#include <duet/optim/trainer_options.h>

#include <memory>
#include <string>
#include <vector>

namespace duet {

class StepCache;

// Compiles model, loss, backward, clipping and optimizer into one captured step per signature and replays it.
// The first update of a signature runs eager, the second is captured (both are real updates), the rest are replayed:
// bit-identical to EagerTrainer.
class GraphTrainer : public BaseTrainer {
 public:
  explicit GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {},
                        const GraphOptions& graph = {});
  ~GraphTrainer() override;

  // One entry per signature seen, in order of first sight.
  std::vector<SignatureReport> report() const;
  // Updates that ran eager, for whatever reason, and replays.
  int64_t eager_updates() const;
  int64_t replays() const;
  // The captured step of the latest update as text; empty if it was not captured.
  std::string program_text() const;

  void load_state_dict(const StateDict& state) override;

 private:
  GraphTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph, at::Device device);
  double plan(const Window& window, const UpdatePoints& points) override;
  UpdateOutput run_update(const Window& window, UpdatePoints& points) override;

  std::unique_ptr<StepCache> cache_;
};

}  // namespace duet
