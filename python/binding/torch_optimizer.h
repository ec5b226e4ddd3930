#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>
#include "graph/graph_trainer.h"
#include "python/binding/collected.h"
#include "python/binding/python_step.h"
#include "python/binding/torch_kernels.h"

namespace duet::python {

// An optimizer of torch.optim inside a captured step: its groups are followed, its state is the step's, so that
// optimizer.state_dict() is what PyTorch's own loop would have. SGD, Adam, AdamW, RMSprop and Adagrad run as
// torch_kind(), any other optimizer as PythonStep.
// Its many members are what the kinds of torch.optim differ in.
class TorchOptimizer {
 public:
  // `clip` is called with model.parameters() between backward and the optimizer, or None. Throws ConfigError for an
  // optimizer that cannot be stepped this way, or whose parameters are not the model's. `may_be_apart`: see PythonStep.
  TorchOptimizer(const py::object& model, const py::object& optimizer, const py::object& clip, bool may_be_apart);

  const OptimizerOptions& options() const { return options_; }
  std::optional<ClipGrad> clip() const;
  // Whether a step can be skipped: only the step of a known optimizer is this class's own.
  bool can_skip() const { return !python_step_; }
  // What a step calls of Python.
  py::list code() const { return python_step_ ? python_step_->code() : py::list(); }
  ParamGroups groups() const;
  at::Device device() const { return parameters_.front().value.device(); }

  // The state that torch has becomes the step's.
  void attach(GraphStep& step);
  // Before a step: what param_groups say now, and a state that was loaded meanwhile. Whether the step has left the
  // optimizer out from this one on.
  bool bring_numbers();
  // After it: the state of parameters that were stepped for the first time, and what the step left out.
  void end_step();

  // While a step is explained nothing is trained.
  void leave_out(bool on) const {
    if (python_step_) python_step_->leave_out(on);
  }
  // The step's code begins.
  void expect_step() const {
    if (python_step_) python_step_->expect();
  }
  std::string graph_key() const;
  void visit_kept(const VisitKept& visit) const;

 private:
  struct Parameter {
    std::string name;
    at::Tensor value;
    std::size_t group = 0;
    bool shown = false;                 // torch's state has its tensors
    SharedObject key;                   // the parameter as Python has it
    SharedObject state;                 // the dict that shows them
    std::vector<SharedObject> objects;  // the tensors in it, by slot; null where torch has none
  };

  static bool is_known(const py::object& optimizer);
  TorchFlags read_flags();
  void read_groups(const py::object& model);
  void clip_gradients() const;
  void bring_numbers(std::size_t index, const py::handle& group);
  void append_what_decides(std::vector<int64_t>& parts) const;
  void check_unchanged();
  bool state_is_ours() const;
  void take_state();
  std::string torch_name(const Parameter& parameter, std::size_t slot) const;
  void show(Parameter& parameter, std::size_t index, const py::object& state);

  SharedObject model_, optimizer_, clip_;
  std::unique_ptr<PythonStep> python_step_;  // null: of torch_kind()
  TorchFlags flags_;
  std::vector<StateSlot> slots_;
  std::vector<bool> has_momentum_;  // by group
  std::vector<std::string> numbers_;
  std::vector<at::Tensor> types_;  // of these, by group; see torch_kind()
  OptimizerOptions options_;
  std::vector<Parameter> parameters_;
  NamedTensors frozen_;                              // others that the optimizer holds
  std::unordered_set<const c10::TensorImpl*> held_;  // the same
  std::vector<std::vector<double>> last_;            // numbers of each group
  SharedObject state_;                               // optimizer.state that shows ours
  SharedObject hooks_;                               // the dicts of step()'s hooks
  // All else of the optimizer that decides what its step does, and the same now.
  std::vector<int64_t> made_with_, now_;
  std::size_t shown_ = 0;  // parameters
  GraphStep* step_ = nullptr;
  std::vector<std::vector<at::Tensor>> tensors_;  // by parameter and slot
};

}  // namespace duet::python
