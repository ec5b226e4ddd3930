#include "python/binding/context.h"
#include <string>
#include "base/error.h"
#include "python/binding/batch_tree.h"
#include "python/binding/bind.h"

namespace duet::python {

namespace {

py::object batch_of(const TrainContext& context) {
  return context.evaluation.batch == nullptr ? py::none() : to_python(*context.evaluation.batch);
}

py::list batches_of(const TrainContext& context) {
  py::list batches;
  const MicroBatches* micro_batches = context.step.micro_batches;
  if (micro_batches == nullptr) return batches;
  for (const Batch& batch : micro_batches->batches) batches.append(to_python(batch));
  return batches;
}

py::list step_outputs_of(const TrainContext& context) {
  py::list outputs;
  const StepResult* result = context.step.result;
  if (result == nullptr) return outputs;
  for (const NamedTensors& of_one : result->outputs) outputs.append(to_dict(of_one));
  return outputs;
}

py::dict dict_of(const NamedTensors* tensors) { return tensors == nullptr ? py::dict() : to_dict(*tensors); }

void bind_progress(py::module_& module) {
  py::class_<Progress>(module, "Progress", "Where a run stands and how far it shall go. Counts finished steps.")
      .def_readonly("step", &Progress::step, "of the whole run")
      .def_readonly("max_steps", &Progress::max_steps, "0: no limit by steps")
      .def_readonly("epoch", &Progress::epoch, "that runs now, from 0")
      .def_readonly("max_epochs", &Progress::max_epochs, "0: no limit by epochs")
      .def_readonly("steps_per_epoch", &Progress::steps_per_epoch, "0: unknown")
      .def_readonly("step_in_epoch", &Progress::step_in_epoch)
      .def_readonly("epoch_seconds", &Progress::epoch_seconds, "that the last epoch took, by the timer; 0: unknown")
      .def("__repr__", [](const Progress& p) {
        return "Progress(step=" + std::to_string(p.step) + ", epoch=" + std::to_string(p.epoch) + ")";
      });
}

py::list gather(const Run& run, const py::object& value) {
  const py::module_ pickle = py::module_::import("pickle");
  const auto own = py::cast<std::string>(pickle.attr("dumps")(value));
  std::vector<std::string> all;
  {
    const py::gil_scoped_release no_gil;
    all = run.get().communicator->all_gather(own);
  }
  py::list objects;
  for (const std::string& bytes : all) objects.append(pickle.attr("loads")(py::bytes(bytes)));
  return objects;
}

void bind_control(py::class_<Run, std::shared_ptr<Run>>& bound) {
  using Value = std::variant<double, at::Tensor>;
  bound
      .def(
          "set_metric",
          [](const Run& run, const std::string& name, double value) {
            CurrentEvaluation& evaluation = run.get().evaluation;
            require<ConfigError>(evaluation.data != nullptr,
                                 "[Run] found set_metric() outside of an evaluation, expected it at after_val_epoch");
            evaluation.metrics[name] = value;
          },
          py::arg("name"), py::arg("value"), "A result of the evaluation, as those of metrics: at after_val_epoch.")
      .def("gather", gather, py::arg("value"),
           "What each rank gives, by rank: objects that pickle takes. All ranks call it.")
      .def(
          "log",
          [](const Run& run, const std::string& name, const Value& value) {
            std::visit([&](const auto& given) { run.get().log(name, given); }, value);
          },
          py::arg("name"), py::arg("value"), "A value of this step: a number or a 0-dim tensor.")
      .def(
          "log_text",
          [](const Run& run, const std::string& name, const std::string& text) { run.get().log.text(name, text); },
          py::arg("name"), py::arg("text"))
      .def(
          "log_image",
          [](const Run& run, const std::string& name, const at::Tensor& pixels) { run.get().log.image(name, pixels); },
          py::arg("name"), py::arg("pixels"), "uint8 [height, width, 3] RGB on the CPU.")
      .def(
          "request_stop", [](const Run& run, const std::string& reason) { run.get().control.request_stop(reason); },
          py::arg("reason"), "Ends training after this step.")
      .def(
          "stop_diverged", [](const Run& run, const std::string& reason) { run.get().control.stop_diverged(reason); },
          py::arg("reason"), "As request_stop(), for a run that has diverged: no success.")
      .def(
          "interrupt", [](const Run& run, const std::string& reason) { run.get().control.interrupt(reason); },
          py::arg("reason"), "Ends training after this step; it shall go on later.")
      .def(
          "set_mode", [](const Run& run, const std::string& mode) { run.get().trainer.set_mode(parse_mode(mode)); },
          py::arg("mode"), "How the steps to come are run: 'eager' or 'graph'.");
  bind_numbers(bound, [](const Run& run) -> HyperParameters& { return run.get().hyper_parameters; });
}

void bind_run(py::module_& module) {
  py::class_<Run, std::shared_ptr<Run>> bound(module, "Run", "What a hook sees of a run, lent to it for one call.");
  const auto add = [&bound](const char* name, auto get, const char* meaning = "") {
    bound.def_property_readonly(name, [get](const Run& run) { return get(run.get()); }, meaning);
  };
  add("progress", [](const TrainContext& c) { return c.progress; });
  add("mode", [](const TrainContext& c) { return c.mode; }, "'eager' or 'graph'");
  add("work_dir", [](const TrainContext& c) { return c.work_dir; }, "empty: nothing is written");
  add("is_main", [](const TrainContext& c) { return c.is_main; }, "whether this is rank 0");
  add("loss", [](const TrainContext& c) { return c.step.loss(); }, "0-dim tensor of this step");
  add(
      "results",
      [](const TrainContext& c) { return c.step.result == nullptr ? py::dict() : dict_of(&c.step.result->log); },
      "what the loss function logs of this step, 0-dim tensors by name");
  add(
      "weight",
      [](const TrainContext& c) { return c.step.micro_batches == nullptr ? 0.0 : c.step.micro_batches->total; },
      "of this step's batches");
  add("parameters", [](const TrainContext& c) { return dict_of(c.step.parameters); }, "that the step trains, by name");
  add("batches", batches_of, "the micro-batches of this step");
  add("step_outputs", step_outputs_of,
      "what the model gave for each micro-batch of this step, for a hook with wants_outputs = True");
  add(
      "kind", [](const TrainContext& c) { return to_string(c.control.kind); },
      "what the run is: 'training', or 'validation', 'test' or 'prediction' on its own");
  add("batch", batch_of, "of an evaluation; None elsewhere");
  add("outputs", [](const TrainContext& c) { return dict_of(c.evaluation.outputs); }, "of an evaluation's batch");
  add(
      "dataset", [](const TrainContext& c) { return c.evaluation.dataset; },
      "that an evaluation's batch is of; empty if it has no name");
  add("metrics", [](const TrainContext& c) { return c.evaluation.metrics; });
  add(
      "saved_checkpoint", [](const TrainContext& c) { return c.saved_checkpoint; },
      "the path of the last checkpoint that is complete: after_save_checkpoint");
  add(
      "log_line", [](const TrainContext& c) { return std::pair(c.log_line.kind, c.log_line.values); },
      "('train', 'epoch', 'val' or 'test', its numbers by name): on_log");
  add("stop_reason", [](const TrainContext& c) { return c.control.stop_reason; });
  add(
      "outcome", [](const TrainContext& c) { return to_string(c.control.outcome); },
      "'running', or how the run ended: 'finished', 'stopped', 'interrupted', 'diverged' or 'failed'");
  add("error", [](const TrainContext& c) { return c.control.error; });
  bind_control(bound);
}

}  // namespace

void bind_context(py::module_& module) {
  bind_progress(module);
  bind_run(module);
  py::class_<StepWindow, std::shared_ptr<StepWindow>>(module, "StepView", "What Hook.in_step sees.")
      .def_property_readonly("parameters", [](const StepWindow& view) { return to_dict(view.get().parameters); })
      .def_property_readonly("loss", [](const StepWindow& view) { return view.get().output.loss; })
      .def_property_readonly(
          "applied", [](const StepWindow& view) { return view.get().applied; },
          "steps applied so far, int64 [1] on the device");
}

py::dict to_dict(const NamedTensors& tensors) {
  py::dict dict;
  for (const auto& [name, tensor] : tensors) dict[py::str(name)] = py::cast(tensor);
  return dict;
}

py::dict to_dict(const StateDict& state) {
  py::dict dict;
  for (const auto& [name, tensor] : state.tensors()) dict[py::str(name)] = py::cast(tensor);
  for (const auto& [name, value] : state.values()) {
    dict[py::str(name)] = std::visit([](const auto& held) { return py::object(py::cast(held)); }, value);
  }
  return dict;
}

StateDict to_state(const py::handle& dict) {
  StateDict state;
  for (const auto& [key, value] : py::cast<py::dict>(dict)) {
    const auto name = py::cast<std::string>(py::str(key));
    if (THPVariable_Check(value.ptr())) {
      state.set(name, py::cast<at::Tensor>(value));
    } else if (PyBool_Check(value.ptr())) {
      state.set(name, StateValue(py::cast<bool>(value)));
    } else if (PyLong_Check(value.ptr()) && py::detail::make_caster<int64_t>().load(value, /*convert=*/true)) {
      state.set(name, StateValue(py::cast<int64_t>(value)));
    } else if (PyFloat_Check(value.ptr())) {
      state.set(name, StateValue(py::cast<double>(value)));
    } else if (PyUnicode_Check(value.ptr())) {
      state.set(name, StateValue(py::cast<std::string>(value)));
    } else {
      throw ConfigError("[state_dict] '" + name + "' is " + shown(value) +
                        ", expected a tensor, bool, int of 64 bits, float or str");
    }
  }
  return state;
}

}  // namespace duet::python
