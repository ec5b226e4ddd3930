#include "core/detail/op_finder.h"
#include <exception>
#include <memory>
#include <utility>
#include <torch/csrc/autograd/function.h>

namespace duet {

OpFinder* OpFinder::present = nullptr;

namespace {

thread_local bool watching = false;

std::mutex& of_process() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

// An op that runs.
struct OpFinder::Call : at::ObserverContext {
  std::string op, parameter;
};

OpFinder::OpFinder(const Task& task) : alone_(of_process()) {
  const auto know = [this](const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.defined() && tensor.has_storage()) names_.emplace(tensor.storage().unsafeGetStorageImpl(), name);
    }
  };
  know(task.named_parameters());
  know(task.named_buffers());
  present = this;
  watching = true;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin, &end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

OpFinder::~OpFinder() {
  at::removeCallback(handle_);
  present = nullptr;
  watching = false;
}

bool OpFinder::is_watching() { return watching; }

std::string OpFinder::parameter_in(const at::RecordFunction& function) const {
  const auto name_of = [this](const c10::IValue& value) {
    if (!value.isTensor()) return std::string();
    const at::Tensor& tensor = value.toTensor();
    const auto name =
        tensor.defined() && tensor.has_storage() ? names_.find(tensor.storage().unsafeGetStorageImpl()) : names_.end();
    return name == names_.end() ? std::string() : name->second;
  };
  for (const c10::IValue& input : function.inputs()) {
    std::string name = name_of(input);
    if (name.empty() && input.isList()) {
      for (const c10::IValue& item : input.toListRef()) {
        if (name.empty()) name = name_of(item);
      }
    }
    if (!name.empty()) return name;
  }
  return {};
}

std::unique_ptr<at::ObserverContext> OpFinder::begin(const at::RecordFunction& function) {
  if (!function.operator_name()) return nullptr;  // no op: a node of the backward pass, a profiler's span
  auto call = std::make_unique<Call>();
  call->op = function.name();
  call->op.erase(0, call->op.rfind(':') + 1);
  call->parameter = present->parameter_in(function);
  if (!call->parameter.empty()) present->last_ = call->parameter;
  present->found_ = {};  // the code has gone on
  return call;
}

// The outermost of nested ops is the last one to end.
void OpFinder::end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context == nullptr || std::uncaught_exceptions() == 0) return;
  const auto& call = static_cast<const Call&>(*context);
  FailedOp& found = present->found_;
  found.op = call.op;
  found.backward = torch::autograd::get_current_node() != nullptr;
  if (!call.parameter.empty()) {
    found.parameter = call.parameter;
    found.reads = true;
  } else if (!found.reads) {
    found.parameter = present->last_;
  }
}

}  // namespace duet
