#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "core/task.h"
#include "python/binding/collected.h"
#include "python/binding/host_state.h"
#include "python/binding/py.h"

namespace duet::python {

// A torch.nn.Module and a loss in Python as a Task. Everything of Python is called under the GIL, which nobody needs to
// hold.
class PythonTask : public Task {
 public:
  // What Python code is called for. All but the loss may be null.
  struct Functions {
    SharedObject loss;        // loss(model, batch), or loss(prediction, batch) if there is a forward
    SharedObject forward;     // forward(model, batch) -> prediction
    SharedObject validation;  // validation(model, batch) -> dict of outputs
    SharedObject predict;     // predict(model, batch) -> a tensor or a dict of outputs
    SharedObject weight;      // weight(batch): what the loss is a mean over
    SharedObject graph_key;   // graph_key(): host values that the step depends on
    SharedObject further;     // a list of other functions that a step calls
  };
  PythonTask(const py::object& model, Functions functions);

  NamedTensors named_parameters() const override;
  NamedTensors named_buffers() const override;
  std::map<std::string, std::string> tied_names() const override;
  std::vector<ModuleInfo> modules() const override;
  void train(bool on) override;
  std::vector<bool> training_flags() const override;
  void set_training_flags(const std::vector<bool>& flags) override;
  void hold_in_evaluation(const std::vector<std::string>& modules) override;
  void to(at::Device device) override;

  StepOutput training_step(const Batch& batch) override;
  double weight(const Batch& batch) const override;
  NamedTensors validation_step(const Batch& batch) override;
  NamedTensors predict(const Batch& batch) override;
  std::string graph_key() const override;
  void append_key(std::vector<int64_t>& key) const override;
  std::vector<std::string> unsaved_buffers() const override;
  void visit_kept(const VisitKept& visit) const;
  // One more function of the user's that a step calls: of a hook within it.
  void watch(const py::object& function) { host_state_.add(function); }
  // Of its functions no step calls the further ones any more.
  void leave_out_further();

 private:
  py::object forward(const py::object& batch) const;
  py::object loss(const py::object& prediction, const py::object& batch) const;
  NamedTensors named(const char* method, bool deduplicated) const;
  std::optional<uint64_t> numbers_for_key() const;
  NamedTensors evaluated(const std::function<NamedTensors()>& evaluate);
  NamedTensors validation_of(const py::object& given) const;
  void keep_if_needed(const at::Tensor& of_step, bool moves_random_numbers);
  // Whether the code of a step moves them, or its loop does so at nearly every step: each step would have another key.
  // Its code runs instead: a tensor of the step that somebody keeps is what has it run.
  bool leaves_out_numbers() const {
    constexpr int64_t kQuick = 4;
    return moves_numbers_ || quick_changes_ > kQuick;
  }

  SharedObject model_;
  Functions functions_;
  std::vector<std::string> held_;  // in evaluation mode, with all below
  mutable SharedObject modules_;   // list of all submodules, the model first
  mutable SharedObject flagged_;   // those that training_flags() told of
  HostState host_state_;
  // Whether the code of a step moves them, or more of them than are looked at: for good.
  mutable bool moves_numbers_ = false;
  bool has_moved_numbers_ = false;
  bool moves_random_numbers_ = false, evaluation_moves_random_numbers_ = false;
  mutable uint64_t numbers_ = 0;  // at the latest key; how often they were the same since, and how often soon not
  mutable int64_t same_numbers_ = 0, quick_changes_ = 0, keys_ = 0;
  at::Tensor kept_;
};

}  // namespace duet::python
