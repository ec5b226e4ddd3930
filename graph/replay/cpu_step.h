#pragma once

#include <memory>
#include <string>
#include "graph/detail/captured_step.h"
#include "graph/graph_options.h"
#include "graph/replay/cpu_program.h"

namespace duet {

// A captured step as a CpuProgram, replayed kernel by kernel.
class CpuStep : public CapturedStep {
 public:
  explicit CpuStep(const MicroBatches& example, Fuse fuse = Fuse::kExact) : CapturedStep(example), fuse_(fuse) {}

  int64_t bytes() const override { return inputs_.bytes() + (program_ ? program_->bytes() : 0); }
  std::string text(const NamedTensors& names) const override;

 private:
  void compile(const StepProgram& recording, TrainStep& step, const StepResult& recorded) override;
  void run_segment(std::size_t segment) override { program_->run(segment); }

  Fuse fuse_;
  std::unique_ptr<CpuProgram> program_;
};

}  // namespace duet
