#pragma once

#include <duet/core/update_rule.h>
#include <duet/graph/static_window.h>

#include <memory>
#include <string>

namespace duet {

// One update captured for one signature. TapeStep replays on any device; CudaStep holds CUDA graphs.
class CapturedStep {
 public:
  virtual ~CapturedStep() = default;

  // Runs one real update on `window` and captures it. False if it ran but could not be captured: failure() says why.
  virtual bool capture(UpdateRule& rule, const Window& window, UpdatePoints& points, bool strict, UpdateOutput& output) = 0;
  // Runs one update on `window`, which has the layout of the captured one.
  virtual UpdateOutput replay(UpdateRule& rule, const Window& window, UpdatePoints& points) = 0;

  virtual const std::string& failure() const = 0;
  virtual int64_t bytes() const = 0;
  virtual std::string text(const NamedTensors& names) const = 0;

  // Whether host points were captured as splits, and for which set of hooks.
  bool splits = false;
  int64_t points_version = 0;
};

// The kind of step for `device`.
std::unique_ptr<CapturedStep> make_captured_step(at::Device device, const Window& example);
// Eager updates of a signature before it is captured: 1 on the CPU; more on CUDA, whose libraries set themselves up.
int64_t updates_before_capture(at::Device device);

}  // namespace duet
