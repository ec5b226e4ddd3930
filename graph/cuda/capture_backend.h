#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <c10/core/Device.h>

namespace duet {

// The graphs of one captured step on a device that can capture what is launched on it. Whatever fails throws; then the
// capture in progress is over and nothing of it has run.
class CaptureBackend {
 public:
  virtual ~CaptureBackend() = default;
  // Between the two, work is written down instead of run; each pair makes one graph.
  virtual void begin() = 0;
  virtual void end() = 0;
  // Ends a capture that failed midway. The device can be used again afterwards.
  virtual void abort() noexcept = 0;
  virtual void replay(std::size_t graph) = 0;
  // Device memory that the graphs hold.
  virtual int64_t bytes() const = 0;
};

// What all captured steps of a trainer share: one stream for every step, eager ones included (autograd remembers the
// stream of its nodes), and one memory pool.
class CaptureDevice {
 public:
  virtual ~CaptureDevice() = default;
  virtual std::unique_ptr<CaptureBackend> new_backend() = 0;
  // Runs `work` on the capture stream, ordered after and before the caller's own stream.
  virtual void run(const std::function<void()>& work) = 0;
};

// CUDA graphs on `device`. Throws ConfigError if duet was built without CUDA. (cuda_graph.cpp or no_cuda_graph.cpp)
std::unique_ptr<CaptureDevice> make_cuda_capture_device(c10::Device device);

}  // namespace duet
