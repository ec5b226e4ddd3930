#pragma once

#include "graph/detail/captured_step.h"
#include "graph/replay/step_program.h"

#include <memory>
#include <string>

namespace duet {

class OpRecorder;

// A captured step as a StepProgram: recorded by OpRecorder, replayed kernel by kernel.
class TapeStep : public CapturedStep {
 public:
  explicit TapeStep(const MicroBatches& example, Fuse fuse = Fuse::kExact) : CapturedStep(example), fuse_(fuse) {}

  bool capture(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points, bool strict, StepResult& output) override;
  int64_t bytes() const override { return inputs_.bytes() + (program_ ? program_->bytes() : 0); }
  std::string text(const NamedTensors& names) const override;

 private:
  void run_segment(std::size_t segment) override { program_->run(segment); }
  void compile(const OpRecorder& recorder, TrainStep& rule, const StepResult& output);

  Fuse fuse_;
  std::unique_ptr<StepProgram> program_;
};

}  // namespace duet
