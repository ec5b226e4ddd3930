#include <duet/graph/tape_step.h>

namespace duet {

std::unique_ptr<CapturedStep> make_captured_step(at::Device device, const Window& example) {
  (void)device;
  return std::make_unique<TapeStep>(example);
}

int64_t updates_before_capture(at::Device device) { return device.is_cuda() ? 3 : 1; }

}  // namespace duet
