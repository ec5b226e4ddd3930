#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include "base/batch.h"
#include "base/detail/autograd_watch.h"

namespace duet {

// Sees every leaf ATen call of a step.
class OpListener {
 public:
  virtual ~OpListener() = default;
  // A call with its arguments on top of the stack, where its results are to be afterwards. `below`: the dispatch keys
  // with which op.redispatchBoxed() runs it as if nobody listened.
  virtual void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) = 0;
  // A backward pass from `loss` to the gradients of `parameters` comes next in the step. Whether it is to run; where
  // not, the listener has put the gradients in place.
  virtual bool before_backward(const at::Tensor& /*loss*/, const NamedTensors& /*parameters*/,
                               const AutogradWatch& /*watch*/) {
    return true;
  }
  // It has run.
  virtual void after_backward(const NamedTensors& /*parameters*/) {}
};

// While it lives, the leaf ATen calls of this thread (and of autograd's threads that work for it) go to `listener`, one
// after the other. Calls that the listener makes are not heard.
//
// It sits on DispatchKey::Fake, for which LibTorch 2.11 to 2.15 have no kernel: below autograd, autocast and composite
// ops, above the backends.
class OpTap {
 public:
  static constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

  // Throws GraphError inside another tap of this thread.
  explicit OpTap(OpListener& listener);
  ~OpTap();
  OpTap(const OpTap&) = delete;
  OpTap& operator=(const OpTap&) = delete;

  // Runs a backward pass, or leaves it out where whoever hears the calls of this thread says so.
  static void backward(const at::Tensor& loss, const NamedTensors& parameters, const std::function<void()>& run);

  // Whether the calls of this thread go to somebody.
  static bool is_active();

  // Throws GraphError if this LibTorch does not route calls through the tap's key.
  static void self_check();

 private:
  struct Line;
  static void register_fallback();
  static void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  std::shared_ptr<Line> line_;
  std::optional<c10::DebugInfoGuard> info_;
};

}  // namespace duet
