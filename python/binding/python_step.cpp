#include "python/binding/python_step.h"
#include <cstring>
#include <utility>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/python_variable.h>
#include "base/log.h"

namespace duet::python {

namespace {

// What is recorded depends on it. A tensor is read at every step, whatever it holds.
std::string key_of(const py::handle& value) {
  if (!THPVariable_Check(value.ptr())) return py::cast<std::string>(py::repr(value));
  return c10::str("tensor at ", THPVariable_Unpack(value.ptr()).const_data_ptr());
}

thread_local bool reads_back = false;

std::unique_ptr<at::ObserverContext> note_read(const at::RecordFunction& op) {
  reads_back = reads_back || std::strcmp(op.name(), "aten::_local_scalar_dense") == 0;
  return nullptr;
}

// Whether `work` reads a value of a tensor.
template <class Work>
bool reads_values(const Work& work) {
  reads_back = false;
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(note_read).scopes({at::RecordScope::FUNCTION}));
  const auto afterwards = c10::make_scope_exit([handle] { at::removeCallback(handle); });
  work();
  return reads_back;
}

}  // namespace

OptimizerKind PythonStep::kind() {
  return {
      .name = "torch.optim's " + type_name(*optimizer_),
      .slots = [](const OptimizerOptions&) { return std::vector<StateSlot>(); },
      .numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"lr", 0}}; },
      .kernel =
          [this](const KernelCall&, const OptimizerOptions&) {
            if (!is_apart_ && std::exchange(expected_, false)) call();
          },
      .fused = true,
      .takes_any_layout = true,
  };
}

py::list PythonStep::code() const {
  py::list code;
  code.append(optimizer_->attr("step"));  // which a scheduler may have wrapped
  code.append(py::type::of(*optimizer_).attr("step").attr("__get__")(*optimizer_));
  for (const py::handle hooks : *hooks_) code += py::list(hooks.attr("values")());
  return code;
}

void PythonStep::begin() {
  is_apart_ = becomes_apart_;
  ++steps_;
}

std::string PythonStep::graph_key() {
  if (is_apart_) return "apart";
  std::string key;
  for (const py::handle group : optimizer_->attr("param_groups")) {
    for (const auto& [name, value] : py::cast<py::dict>(group)) {
      if (py::cast<std::string>(name) != "params") key += key_of(value) + ";";
    }
  }
  note_numbers(key);
  return key;
}

void PythonStep::call_if_apart() const {
  if (is_apart_) optimizer_->attr("step")();
}

void PythonStep::call() {
  const py::gil_scoped_acquire gil;
  const auto step = [this] { optimizer_->attr("step")(); };
  if (std::exchange(was_called_, true)) return step();
  if (reads_values(step)) put_apart("reads values back to the host");
}

void PythonStep::note_numbers(const std::string& key) {
  constexpr int64_t kWorthRecording = 256, kMaxEarlyChanges = 4;  // steps
  if (key == key_) return;
  const bool is_early = !key_.empty() && steps_ < kWorthRecording;
  if (is_early && ++early_changes_ == kMaxEarlyChanges) put_apart("has other numbers every few steps");
  key_ = key;
  steps_ = 0;
}

void PythonStep::put_apart(const std::string& reason) {
  if (!may_be_apart_ || std::exchange(becomes_apart_, true)) return;
  log_warning(
      "[graph_step] torch.optim's " + type_name(*optimizer_) + " " + reason +
      ": its step() runs op by op, after the forward and backward pass, which are replayed. SGD, Adam, AdamW, "
      "RMSprop and Adagrad on the CPU (without foreach, capturable and hooks) are replayed, too, and on a GPU what "
      "has capturable=True");
}

}  // namespace duet::python
