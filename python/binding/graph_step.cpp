#include <algorithm>
#include <string>
#include <utility>
#include <vector>
#include <c10/util/ScopeExit.h>
#include "base/detail/caller_words.h"
#include "base/error.h"
#include "graph/graph_trainer.h"
#include "python/binding/batch_tree.h"
#include "python/binding/bind.h"
#include "python/binding/context.h"
#include "python/binding/task.h"
#include "python/binding/torch_optimizer.h"
#include "python/binding/trainer.h"
#include "python/binding/trainer_options.h"

namespace duet::python {

namespace {

// A task of a loop that belongs to somebody else: the model's training flags stay theirs.
class LoopTask : public PythonTask {
 public:
  LoopTask(py::object model, Functions functions, std::shared_ptr<TorchOptimizer> optimizer)
      : PythonTask(std::move(model), std::move(functions)), optimizer_(std::move(optimizer)) {}

  void train(bool on) override {
    if (!on) PythonTask::train(on);
  }
  // The loss as the loop has it: nothing is a mean over anything else.
  double weight(const Batch& /*batch*/) const override { return 1; }
  StepOutput training_step(const Batch& batch) override {
    optimizer_->expect_step();
    return PythonTask::training_step(batch);
  }
  std::string graph_key() const override { return PythonTask::graph_key() + optimizer_->graph_key(); }

 private:
  std::shared_ptr<TorchOptimizer> optimizer_;
};

// What a loop has.
struct Loop {
  py::object model, loss, optimizer;
  py::object clip;  // called between backward and the optimizer's step, or None
};

TrainerArguments read_loop_arguments(const py::kwargs& arguments) {
  std::vector<std::string> taken = {"amp", "forward", "graph_key", "loss_scale", "non_finite"};
  for (const OptionField& field : GraphOptions::fields()) taken.push_back(field.name);
  const std::vector<std::string> all = trainer_arguments();
  for (const auto& item : arguments) {
    const auto name = py::cast<std::string>(item.first);
    const bool of_trainers = std::ranges::find(all, name) != all.end();
    require<ConfigError>(
        !of_trainers || std::ranges::find(taken, name) != taken.end(),
        "[graph_step] '" + name +
            "' is an option of the trainers, not of a step; do it in the loop, or use duet.GraphTrainer");
  }
  return read_arguments(arguments, "graph_step", taken);
}

const CallerWords& step_words() {
  static const CallerWords words = {{"[GraphTrainer]", "[graph_step]"}, {"[GraphStep]", "[graph_step]"}};
  return words;
}

class LoopStep {
 public:
  LoopStep(Loop loop, const std::string& mode, const py::kwargs& arguments) {
    const CallerWordsScope words(step_words());
    TrainerArguments sorted = read_loop_arguments(arguments);
    const bool may_be_apart = sorted.graph.fallback == Fallback::kAuto;
    optimizer_ = std::make_shared<TorchOptimizer>(loop.model, loop.optimizer, loop.clip, may_be_apart);
    sorted.functions.loss = share(std::move(loop.loss));
    sorted.functions.further = share(optimizer_->code());
    sorted.options.optimizer = optimizer_->options();
    sorted.options.clip_grad = optimizer_->clip();
    require_skippable(sorted.options);
    sorted.options.param_groups = [optimizer = optimizer_](Task&, const OptimizerOptions&) {
      return optimizer->groups();
    };
    sorted.options.allow_untrained = true;
    sorted.options.device = optimizer_->device().str();
    std::unique_ptr<Task> task = std::make_unique<LoopTask>(std::move(loop.model), sorted.functions, optimizer_);
    const py::gil_scoped_release no_gil;
    step_ = std::make_unique<GraphStep>(std::move(task), sorted.options, sorted.graph);
    step_->set_mode(parse_mode(mode));
    optimizer_->attach(*step_);
  }
  ~LoopStep() { let_go(); }

  // Of an optimizer that is recorded as it is nobody knows what to leave unchanged.
  void require_skippable(const TrainerOptions& options) const {
    const bool may_skip =
        options.non_finite != NonFinite::kApply || options.loss_scale.has_value() || options.amp == at::kHalf;
    require<ConfigError>(
        !may_skip || optimizer_->can_skip(),
        "[graph_step] non_finite and loss_scale (amp=torch.float16 has one) skip steps, which only SGD, "
        "Adam, AdamW, RMSprop and Adagrad can, on the CPU, in float32 or float64, without foreach, "
        "capturable and hooks; leave these options out, or use such an optimizer");
  }

  at::Tensor step(const py::object& object) {
    const Busy busy(user_);
    const CallerWordsScope words(step_words());
    const Batch batch = to_batch(object);
    prepare();
    at::Tensor loss;
    {
      const py::gil_scoped_release no_gil;
      loss = get()(batch).loss;
    }
    optimizer_->end_step();
    return loss;
  }

  StepExplanation explain(const py::object& object) {
    const Busy busy(user_);
    const CallerWordsScope words(step_words());
    const Batch batch = to_batch(object);
    optimizer_->leave_out(true);
    const auto afterwards = c10::make_scope_exit([this] { optimizer_->leave_out(false); });
    prepare();
    const py::gil_scoped_release no_gil;
    return get().explain(batch);
  }

  GraphStep& get() {
    require<ConfigError>(step_ != nullptr, "[GraphStep] found a step that the garbage collector has taken apart");
    return *step_;
  }

  void visit_kept(const VisitKept& visit) const {
    if (step_) dynamic_cast<const LoopTask&>(step_->task()).visit_kept(visit);
    if (optimizer_) optimizer_->visit_kept(visit);
  }
  void let_go() {
    {
      const py::gil_scoped_release no_gil;
      step_.reset();
    }
    optimizer_.reset();
  }

 private:
  void prepare() {
    if (optimizer_->bring_numbers()) dynamic_cast<LoopTask&>(get().task()).leave_out_further();
  }

  std::shared_ptr<TorchOptimizer> optimizer_;
  std::unique_ptr<GraphStep> step_;
  std::thread::id user_;
};

}  // namespace

void bind_graph_step(py::module_& module) {
  py::class_<LoopStep>(module, "GraphStep", collected<LoopStep>(),
                       "The step of an existing loop: call it with a batch.")
      .def(py::init([](py::object model, py::object loss, py::object optimizer, py::object clip,
                       const std::string& mode, const py::kwargs& arguments) {
             Loop loop{std::move(model), std::move(loss), std::move(optimizer), std::move(clip)};
             return std::make_unique<LoopStep>(std::move(loop), mode, arguments);
           }),
           py::arg("model"), py::arg("loss"), py::arg("optimizer"), py::arg("clip"), py::arg("mode"))
      .def("__call__", &LoopStep::step, py::arg("batch"), "One step; returns the loss, a 0-dim tensor that is yours.")
      .def("explain", &LoopStep::explain, py::arg("batch"), "What graph mode makes of a step; nothing is trained.")
      .def(
          "report", [](LoopStep& step) { return to_list(step.get().report()); },
          "One dict per signature of the step: state, reason, replays, ..., and what was not checked (host_code).")
      .def(
          "set_mode",
          [](LoopStep& step, const std::string& mode) {
            const CallerWordsScope words(step_words());
            step.get().set_mode(parse_mode(mode));
          },
          py::call_guard<py::gil_scoped_release>(), py::arg("mode"), "'eager' or 'graph': the same bits either way.")
      .def_property_readonly("mode", [](LoopStep& step) { return to_string(step.get().mode()); })
      .def_property_readonly(
          "log", [](LoopStep& step) { return to_dict(step.get().result().log); },
          "what the loss function gave beside the loss, at the latest step");
}

}  // namespace duet::python
