#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

namespace duet {

// The graphs of one captured step on a device that can capture what is launched on it. Whatever fails throws; then
// abort() ends the capture in progress, and nothing of it has run.
class CaptureBackend {
 public:
  virtual ~CaptureBackend() = default;
  // Between the two, work is written down instead of run; each pair makes one graph. `generators` are those that it
  // draws from beside the device's own.
  virtual void begin(const std::vector<at::Generator>& generators) = 0;
  virtual void end() = 0;
  // Between begin() and end(): calls `run`, which runs `op` on `stack`. Throws if that spoils the capture.
  virtual void run_op(const c10::OperatorHandle& op, torch::jit::Stack& stack, const std::function<void()>& run) = 0;
  // Ends a capture that failed midway, if there is one, and forgets its graphs. Allocator, generators and streams are
  // as they were before.
  virtual void abort() noexcept = 0;
  // Gives memory that nobody uses back to the device. False if there is none to give.
  virtual bool free_memory() { return false; }
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
  // Runs one step on the capture stream, ordered after and before the caller's own stream. No other trainer of the
  // process captures meanwhile, or runs a step while this one captures.
  virtual void run(const std::function<void()>& step) = 0;
  // The same for other work, which is never captured.
  virtual void on_stream(const std::function<void()>& work) = 0;
};

// CUDA graphs on `device`. Throws ConfigError if duet was built without CUDA. (cuda_graph.cpp or no_cuda_graph.cpp)
std::unique_ptr<CaptureDevice> make_cuda_capture_device(c10::Device device);

}  // namespace duet
