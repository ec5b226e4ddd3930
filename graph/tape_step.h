#pragma once

#include <duet/graph/captured_step.h>
#include <duet/graph/step_program.h>

#include <memory>
#include <vector>

namespace duet {

// A captured step as a StepProgram: recorded by OpRecorder, replayed kernel by kernel.
class TapeStep : public CapturedStep {
 public:
  explicit TapeStep(const Window& example) : inputs_(example) {}

  bool capture(UpdateRule& rule, const Window& window, UpdatePoints& points, bool strict, UpdateOutput& output) override;
  UpdateOutput replay(UpdateRule& rule, const Window& window, UpdatePoints& points) override;

  const std::string& failure() const override { return failure_; }
  int64_t bytes() const override { return inputs_.bytes() + (program_ ? program_->bytes() : 0); }
  std::string text(const NamedTensors& names) const override;

 private:
  enum class Moment { kAfterBackward, kBeforeOptimizerStep };
  class RecordingPoints;

  void compile(const class OpRecorder& recorder, UpdateRule& rule, const UpdateOutput& output);
  void hand_out_gradients(UpdateRule& rule);
  void take_back_gradients(UpdateRule& rule);

  StaticWindow inputs_;
  std::unique_ptr<StepProgram> program_;
  UpdateOutput output_;
  std::vector<at::Tensor> gradients_;  // by parameter; undefined where the step gives none
  std::vector<Moment> moments_;        // host point after each segment but the last
  std::string failure_;
};

}  // namespace duet
