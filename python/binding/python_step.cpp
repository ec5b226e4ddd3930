#include "python/binding/python_step.h"
#include <cstring>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/python_variable.h>
#include "base/log.h"
#include "python/binding/generators.h"

namespace duet::python {

namespace {

// What is recorded depends on it. A tensor is read at every step, whatever it holds.
std::string key_of(const py::handle& value) {
  if (!THPVariable_Check(value.ptr())) return shown(value);
  return c10::str("tensor at ", THPVariable_Unpack(value.ptr()).const_data_ptr());
}

thread_local bool reads_back = false;

std::unique_ptr<at::ObserverContext> note_read(const at::RecordFunction& op) {
  reads_back = reads_back || std::strcmp(op.name(), "aten::_local_scalar_dense") == 0;
  return nullptr;
}

}  // namespace

OptimizerKind PythonStep::kind() {
  return {
      .name = "torch.optim's " + type_name(*optimizer_),
      .slots = [](const OptimizerOptions&) { return std::vector<StateSlot>(); },
      .numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"lr", 0}}; },
      .kernel =
          [this](const KernelCall&, const OptimizerOptions&) {
            if (way_ != Way::kApart && !is_left_out_ && std::exchange(expected_, false)) call();
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

std::string PythonStep::graph_key() const {
  if (way_ == Way::kApart) return "apart";
  std::string key;
  for (const py::handle group : optimizer_->attr("param_groups")) {
    for (const auto& [name, value] : py::cast<py::dict>(group)) {
      if (py::cast<std::string>(name) != "params") key += key_of(value) + ";";
    }
  }
  return key;
}

// Numbers that change at every step, counts in Python and all else that has steps run op by op may be the optimizer's.
bool PythonStep::begin(Mode mode, int64_t replays) {
  constexpr int64_t kFirst = 16;
  grad_mode_ = at::GradMode::is_enabled();
  mode_ = mode;
  const int64_t eager_steps = steps_ - replays;
  if (mode == Mode::kGraph && !is_left_out_) ++steps_;
  if (eager_steps > kFirst && eager_steps > replays) leave("is in steps that run op by op");
  if (way_ != Way::kLeaving) return false;
  way_ = Way::kApart;
  return true;
}

void PythonStep::call_if_apart() const {
  if (way_ == Way::kApart) optimizer_->attr("step")();
}

void PythonStep::call() {
  const py::gil_scoped_acquire gil;
  const at::AutoGradMode as_in_the_loop(grad_mode_);
  const auto step = [this] { optimizer_->attr("step")(); };
  if (mode_ != Mode::kGraph) return step();
  const uint64_t random_place = host_random_place();
  reads_back = false;
  const auto watch =
      at::addThreadLocalCallback(at::RecordFunctionCallback(note_read).scopes({at::RecordScope::FUNCTION}));
  const auto afterwards = c10::make_scope_exit([watch] { at::removeCallback(watch); });
  step();
  if (reads_back) leave("reads values back to the host");
  if (host_random_place() != random_place) leave("draws random numbers of Python or NumPy");
}

void PythonStep::leave(const std::string& reason) {
  if (!may_be_apart_ || mode_ != Mode::kGraph || way_ != Way::kRecorded) return;
  way_ = Way::kLeaving;
  log_warning("[graph_step] the optimizer's step() (" + type_name(*optimizer_) + ") " + reason +
              ": it is called op by op, after the forward and backward pass, which can be replayed. torch.optim's SGD, "
              "Adam, AdamW, RMSprop and Adagrad on the CPU (without foreach, capturable and hooks) are replayed, too, "
              "and on a GPU what has capturable=True");
}

}  // namespace duet::python
