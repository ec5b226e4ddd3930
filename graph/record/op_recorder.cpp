#include "graph/record/op_recorder.h"
#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include "base/detail/op_rules.h"
#include "base/detail/stack_tensors.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "graph/record/obstacle.h"

namespace duet {

void OpRecorder::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (paused_) return op.redispatchBoxed(below, stack);
  if (!failure().empty() && !tells_all()) {
    addresses_.stop();
    return op.redispatchBoxed(below, stack);
  }
  if (below.has(c10::DispatchKey::Python)) {
    fail_here(full_name(op) + " is handed to Python (torch.compile, a dispatch mode, a subclass of torch.Tensor)",
              "leave that out of the step, which graph mode replays without Python anyway");
    return op.redispatchBoxed(below, stack);
  }
  if (const std::string input = inputs().give_storage_back(op, *stack); !input.empty()) {
    fail_here(
        full_name(op) + " goes by places in the storage of the batch tensor '" + input + "', of which that is a part",
        "clone() the tensor before it goes into the batch");
    return op.redispatchBoxed(below, stack);
  }
  if (is_view_by_other_means(op, *stack)) return op.redispatchBoxed(below, stack);
  check_settings();
  note_addresses();
  note_host_work(op, *stack);
  Call call = before(op, *stack);
  std::vector<at::Tensor> used;
  const auto use = [&used](const at::Tensor& tensor) { used.push_back(tensor); };
  for_each_tensor(*stack, op.schema().arguments().size(), use);
  const bool is_atens = op.schema().name().rfind("aten::", 0) == 0;
  if (!is_atens) {
    for (const at::Tensor& tensor : used) addresses_.exempt(tensor);
  }
  run(op, below, stack);
  check_graph_of(op, *stack, used);
  after(std::move(call), *stack);
  for_each_tensor(*stack, op.schema().returns().size(), use);
  for (const at::Tensor& tensor : used) {
    if (has_no_host_alias(tensor)) addresses_.guard(tensor);
  }
}

// By parameter; none if one is not known.
std::optional<std::vector<int>> OpRecorder::gradients_of(const NamedTensors& parameters) const {
  std::vector<int> values;
  for (const auto& parameter : parameters) {
    const at::Tensor& gradient = parameter.second.grad();
    values.push_back(gradient.defined() && gradient.has_storage() ? program().table.find(gradient) : -1);
    if (gradient.defined() && values.back() < 0) return {};
  }
  return values;
}

bool OpRecorder::before_backward(const at::Tensor& loss, const NamedTensors& parameters, const AutogradWatch& watch) {
  pass_.reset();
  auto shape = shape_of_backward(loss, watch);
  auto gradients = gradients_of(parameters);
  if (!shape || !gradients) return true;
  pass_ = BackwardPass{std::move(*shape), {}, std::move(*gradients)};
  append_settings(pass_->settings, on_device_);
  pass_->begin = program().ops.size();
  return true;
}

void OpRecorder::after_backward(const NamedTensors& parameters) {
  auto gradients = gradients_of(parameters);
  if (!pass_ || !gradients) return;
  pass_->gradients_after = std::move(*gradients);
  pass_->end = program().ops.size();
  add_backward(std::move(*pass_));
}

// Autograd makes its nodes above this place. What a kernel makes below it a check, which runs no kernels, would miss.
void OpRecorder::check_graph_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                const std::vector<at::Tensor>& arguments) {
  const auto is_argument = [&](const at::Tensor& tensor) {
    return std::ranges::any_of(arguments, [&](const at::Tensor& argument) { return argument.is_same(tensor); });
  };
  for_each_tensor(stack, op.schema().returns().size(), [&](const at::Tensor& result) {
    if (!result.grad_fn() || is_argument(result)) return;
    fail_here("the kernel of " + full_name(op) + " is made of ops that autograd sees",
              "register it for CompositeImplicitAutograd, or give the op a formula for its gradient");
  });
}

void OpRecorder::check_settings() {
  if (!program().settings) return;
  const std::string changed = changed_setting(*program().settings);
  if (changed.empty()) return;
  fail_here("the step's host code changes a setting between its ops: " + changed, "set it around the steps");
}

// Places in memory are what is recorded, however a tensor came to lie there. Not so one from outside the step, which
// would not be moved at a replay.
bool OpRecorder::is_view_by_other_means(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  const at::Tensor tensor = laid_over_memory(op, stack);
  const int index = tensor.defined() ? program().table.find_storage(tensor) : -1;
  return index >= 0 && !program().table.storages()[index].external;
}

// Not made by the step out of numbers, which are the same at each step (TraceCheck).
bool OpRecorder::is_from_outside(const at::Tensor& tensor) const {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return false;
  const ValueTable& table = program().table;
  const int index = table.find_storage(tensor);
  if (index < 0) return true;
  const ValueTable::Storage& storage = table.storages()[index];
  return storage.external && !storage.contents;
}

// A graph of a device holds what runs there alone: what the host computes or sends meanwhile would stay as it was at
// the capture.
void OpRecorder::note_host_work(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!on_device_) return;
  const auto& arguments = op.schema().arguments();
  bool uses_any = false, on_device = false, from_host = false;
  for_each_tensor(stack, arguments.size(), [&](const at::Tensor& tensor) {
    uses_any = true;
    on_device = on_device || !tensor.is_cpu();
    from_host = from_host || (tensor.is_cpu() && is_from_outside(tensor));
  });

  std::optional<c10::Device> target;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    if (arguments[i].name() == "device" && value.isDevice()) target = value.toDevice();
  }
  const bool to_host = target ? target->is_cpu() : !on_device;
  std::string what;
  if (from_host) {
    what = on_device ? " uses a tensor of the host" : " computes on the host";
  } else if (is_random(op) && to_host) {
    what = " draws on the host";
  } else if (uses_any && to_host == on_device) {
    what = on_device ? " copies to the host" : " copies from the host to the device";
  } else {
    return;
  }
  fail_here(full_name(op) + what,
            "keep it on the device: a buffer of the model, or a tensor made there (on the device of the weights)");
}

void OpRecorder::watch_addresses(const NamedTensors& tensors) {
  for (const auto& item : tensors) addresses_.guard(item.second);
}

void OpRecorder::run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const std::exception_ptr error = caught([&] {
    addresses_.lend(*stack, op.schema().arguments().size());
    op.redispatchBoxed(below, stack);
  });
  addresses_.take_back();  // which may be short of memory itself
  if (!error) return;
  thrown_ = full_name(op);
  std::rethrow_exception(error);
}

void OpRecorder::note_addresses() {
  if (!addresses_.taken()) return;
  fail_here("the step's host code reads the memory of a tensor of the step by its address (data_ptr(), accessor())",
            "use tensor ops for it");
}

void OpRecorder::pause() {
  const bool ran = !std::exchange(paused_, true);
  if (ran && failure().empty()) note_addresses();
  if (ran && failure().empty() && !thrown_.empty()) {
    fail({"the step's host code goes on after " + thrown_ + " has thrown, which a check does not run",
          "leave that call out of the step"});
  }
  if (ran) note_end();
  addresses_.pause();
}

void OpRecorder::resume() {
  paused_ = false;
  addresses_.resume();
  note_random_state();
}

void OpRecorder::record(const std::function<void()>& step) {
  try {
    step();
  } catch (const GraphError&) {
    throw;
  } catch (const std::exception&) {
    throw_if_refused();
    throw;
  }
}

}  // namespace duet
