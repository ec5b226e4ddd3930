#pragma once

#include <mutex>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace duet {

// Sees every leaf ATen call of a step.
class OpListener {
 public:
  virtual ~OpListener() = default;
  // A call with its arguments on top of the stack, where its results are to be afterwards. `below`: the dispatch keys
  // with which op.redispatchBoxed() runs it as if nobody listened.
  virtual void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) = 0;
};

// While it lives, the leaf ATen calls of this thread (and of autograd's threads that work for it) go to `listener`. One
// at a time per process; calls that the listener makes are not heard.
//
// It sits on DispatchKey::Fake, which LibTorch 2.11 leaves free: below autograd, autocast and composite ops, above the
// backends.
class OpTap {
 public:
  // Waits for another trainer's tap. Throws GraphError inside one of this thread's own.
  explicit OpTap(OpListener& listener);
  ~OpTap();
  OpTap(const OpTap&) = delete;
  OpTap& operator=(const OpTap&) = delete;

  // Throws GraphError if this LibTorch does not route calls through the tap's key.
  static void self_check();

 private:
  static void register_fallback();
  static void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  std::unique_lock<std::mutex> lock_;
};

}  // namespace duet
