#include "python/binding/trainer.h"
#include <utility>
#include "base/detail/caller_words.h"
#include "base/error.h"
#include "checkpoint/weights_file.h"
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "hooks/default_hooks.h"
#include "make_trainer.h"
#include "python/binding/batch_tree.h"
#include "python/binding/bind.h"
#include "python/binding/context.h"
#include "python/binding/hooks.h"
#include "python/binding/interrupts.h"
#include "python/binding/source.h"
#include "python/binding/trainer_options.h"

namespace duet::python {

namespace {

// A trainer that Python owns. Its work runs without the GIL; what it calls of Python takes it.
class Trainer {
 public:
  Trainer(Mode mode, py::object model, const py::kwargs& arguments) : model_(share(model)) {
    TrainerArguments sorted = read_arguments(arguments);
    require<ConfigError>(sorted.functions.loss != nullptr, "[Trainer] there is no loss, expected loss(model, batch)");
    auto task = std::make_unique<PythonTask>(std::move(model), sorted.functions);
    std::vector<std::pair<std::string, std::unique_ptr<Hook>>> hooks;
    for (const py::object& hook : sorted.hooks) {
      if (const py::object in_step = optional_attribute(hook, "in_step")) task->watch(in_step);
      std::unique_ptr<Hook> made = to_hook(hook);
      const std::string name = made->name();
      hooks.emplace_back(name, std::move(made));
    }
    std::vector<std::unique_ptr<Metric>> metrics;
    for (const py::object& metric : sorted.metrics) metrics.push_back(to_metric(metric));
    accumulate_ = std::max<int64_t>(sorted.options.loop.accumulate, 1);
    const py::gil_scoped_release no_gil;
    trainer_ = make_trainer(mode, std::move(task), sorted.options, sorted.graph);
    add_hooks(std::move(hooks), sorted.default_hooks);
    for (auto& metric : metrics) trainer_->add_metric(std::move(metric));
  }
  ~Trainer() { let_go(); }

  BaseTrainer& get() {
    require<ConfigError>(trainer_ != nullptr, "[Trainer] found a trainer that the garbage collector has taken apart");
    return *trainer_;
  }
  void visit_kept(const VisitKept& visit) const {
    visit(model_);
    if (trainer_) dynamic_cast<const PythonTask&>(trainer_->task()).visit_kept(visit);
  }
  void let_go() {
    {
      const py::gil_scoped_release no_gil;
      trainer_.reset();
    }
    model_.reset();
  }
  const py::object& model() const { return *model_; }

  void fit(const py::object& data, const py::object& validation) {
    const Busy busy(user_);
    const auto source = std::make_shared<PythonSource>(data, accumulate_);
    std::optional<PythonSources> others;
    if (!validation.is_none()) others.emplace(validation, source);
    const InterruptsWait interrupts;
    {
      const py::gil_scoped_release no_gil;
      others ? get().train(*source, others->named()) : get().train(*source);
    }
    raise_interrupts();
  }

  MetricValues evaluate(const py::object& data, MetricValues (BaseTrainer::*pass)(const NamedSources&)) {
    const Busy busy(user_, /*may_be_in_hook=*/true);
    PythonSources sources(data);
    const py::gil_scoped_release no_gil;
    return (get().*pass)(sources.named());
  }

  int64_t step_many(const py::object& batches, int64_t count) {
    const Busy busy(user_);
    PythonSource source(batches);
    source.iterate();
    const py::gil_scoped_release no_gil;
    return get().step_many(source, count);
  }

  at::Tensor step_accumulated(const py::sequence& micro_batches) {
    const Busy busy(user_);
    std::vector<Batch> batches;
    for (const py::handle batch : micro_batches) batches.push_back(to_batch(batch));
    const py::gil_scoped_release no_gil;
    return get().step(std::move(batches)).loss;
  }

  py::dict predict(const py::object& batch) {
    const Busy busy(user_, /*may_be_in_hook=*/true);
    const Batch given = to_batch(batch);
    Batch outputs;
    {
      const py::gil_scoped_release no_gil;
      outputs = get().predict(given);
    }
    return to_dict(outputs.items());
  }

  py::list predict_all(const py::object& data) {
    const Busy busy(user_, /*may_be_in_hook=*/true);
    PythonSource source(data);
    std::vector<NamedTensors> all;
    {
      const py::gil_scoped_release no_gil;
      get().predict(source, [&all](const Batch&, const NamedTensors& outputs) {
        NamedTensors kept;
        for (const auto& [name, tensor] : outputs) kept.emplace_back(name, tensor.detach().clone());
        all.push_back(std::move(kept));
      });
    }
    py::list outputs;
    for (const NamedTensors& one : all) outputs.append(to_dict(one));
    return outputs;
  }

  LrCurve find_lr(const py::object& data, const LrFinderOptions& options) {
    const Busy busy(user_);
    PythonSource source(data);
    const py::gil_scoped_release no_gil;
    return get().find_lr(source, options);
  }

  StepExplanation explain(const py::object& batch) {
    const Busy busy(user_);
    const Batch given = to_batch(batch);
    const py::gil_scoped_release no_gil;
    return get().explain(given);
  }

 private:
  // A hook that is called like a default one takes its place.
  void add_hooks(std::vector<std::pair<std::string, std::unique_ptr<Hook>>> hooks, bool with_default_ones) {
    if (!with_default_ones) {
      for (auto& [name, hook] : hooks) trainer_->add_hook(std::move(hook));
      return;
    }
    DefaultHooksOptions options;
    options.checkpoint.need_work_dir = false;
    HookOverrides overrides;
    for (auto& [name, hook] : hooks) overrides.set(name, std::move(hook));
    register_default_hooks(*trainer_, options, std::move(overrides));
  }

  SharedObject model_;
  std::unique_ptr<BaseTrainer> trainer_;
  int64_t accumulate_ = 1;
  std::thread::id user_;
};

py::dict result_of(Trainer& trainer) {
  const StepResult& result = trainer.get().result();
  py::dict dict;
  if (result.loss.defined()) dict["loss"] = py::cast(result.loss);
  for (const auto& [name, tensor] : result.log) dict[py::str(name)] = py::cast(tensor);
  if (result.grad_norm.defined()) dict["grad_norm"] = py::cast(result.grad_norm);
  return dict;
}

py::dict dict_of(const SignatureReport& report) {
  py::dict dict;
  dict["signature"] = report.signature;
  dict["kind"] = report.kind;
  dict["state"] = report.state;
  dict["reason"] = in_callers_words(report.reason);
  dict["eager_steps"] = report.eager_steps;
  dict["replays"] = report.replays;
  dict["checked"] = report.checked;
  dict["unchecked"] = report.unchecked;
  dict["unchecked_in_a_row"] = report.unchecked_in_a_row;
  dict["host_code"] = to_text(UncheckedSteps{report.unchecked, report.unchecked_in_a_row});
  dict["differing"] = report.differing;
  dict["nondeterministic"] = report.nondeterministic;
  dict["bytes"] = report.bytes;
  return dict;
}

void bind_explanation(py::module_& module) {
  py::class_<StepExplanation::Obstacle>(module, "Obstacle", "Something that keeps a step from being captured.")
      .def_readonly("op", &StepExplanation::Obstacle::op)
      .def_readonly("what", &StepExplanation::Obstacle::what)
      .def_readonly("where", &StepExplanation::Obstacle::where)
      .def_readonly("source", &StepExplanation::Obstacle::source)
      .def_readonly("way_out", &StepExplanation::Obstacle::way_out)
      .def_readonly("times", &StepExplanation::Obstacle::times);
  const auto text = [](const StepExplanation& explanation) { return in_callers_words(explanation.text()); };
  py::class_<StepExplanation>(module, "StepExplanation", "What graph mode makes of a step, found out without training.")
      .def_readonly("captured", &StepExplanation::captured)
      .def_readonly("reason", &StepExplanation::reason)
      .def_readonly("obstacles", &StepExplanation::obstacles)
      .def_readonly("changes", &StepExplanation::changes)
      .def_readonly("bytes", &StepExplanation::bytes)
      .def_readonly("replay_us", &StepExplanation::replay_us)
      .def_readonly("eager_us", &StepExplanation::eager_us)
      .def("text", text)
      .def("__repr__", text)
      .def("__str__", text);
}

void bind_curve(py::module_& module) {
  py::class_<LrCurve>(module, "LrCurve", "The loss over the learning rate, as find_lr() gives it.")
      .def_readonly("lr", &LrCurve::lr)
      .def_readonly("loss", &LrCurve::loss, "a running mean, bias-corrected")
      .def_readonly("steepest", &LrCurve::steepest, "where it falls most, as Lightning suggests; None: too few points")
      .def_readonly("valley", &LrCurve::valley, "in its longest fall, as fastai suggests; None: too few points");
}

void bind_loop(py::class_<Trainer>& bound) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  bound
      .def("fit", &Trainer::fit, py::arg("train_loader"), py::arg("val_loader") = py::none(),
           "Trains to max_steps or max_epochs, from where this trainer stands. A loader is anything that can be "
           "iterated over once per epoch. val_loader may be a dict of loaders: one validation in turn, with results "
           "'<name>/<metric>'.")
      .def(
          "step", [](Trainer& t, const py::object& batch) { return t.step_accumulated(py::make_tuple(batch)); },
          py::arg("batch"), "One step in a loop of your own. Returns the loss, a 0-dim tensor that is yours.")
      .def("step_many", &Trainer::step_many, py::arg("batches"), py::arg("count"),
           "Up to count steps on what an iterator gives from where it stands (or an iterable from its beginning), "
           "accumulate micro-batches each: as if step() were called with them. Returns how many were made: fewer where "
           "the batches end, and after one in which a hook asks to stop. result is of the last one.")
      .def("step_accumulated", &Trainer::step_accumulated, py::arg("micro_batches"),
           "One step over several micro-batches: the weighted mean of their gradients.")
      .def(
          "finish", [](Trainer& t) { t.get().finish(); }, unlocked, "Closes the run that step() opened.")
      .def(
          "set_mode", [](Trainer& t, const std::string& mode) { t.get().set_mode(parse_mode(mode)); }, unlocked,
          py::arg("mode"), "How the steps to come are run, 'eager' or 'graph': the same bits either way.")
      .def(
          "add_metric",
          [](Trainer& t, const py::object& metric, std::string prefix) {
            t.get().add_metric(to_metric(metric), std::move(prefix));
          },
          py::arg("metric"), py::arg("prefix") = "")
      .def(
          "add_hook",
          [](Trainer& t, const py::object& hook, std::optional<int> priority) {
            t.get().add_hook(to_hook(hook), priority);
            if (const py::object in_step = optional_attribute(hook, "in_step"))
              dynamic_cast<PythonTask&>(t.get().task()).watch(in_step);
          },
          py::arg("hook"), py::arg("priority") = py::none())
      .def("hooks", [](Trainer& t) { return t.get().hooks().order(); }, "Names of the hooks, in calling order.");
  bind_numbers(bound, [](Trainer& t) -> HyperParameters& { return t.get().hyper_parameters(); });
}

void bind_evaluation(py::class_<Trainer>& bound) {
  bound
      .def(
          "validate", [](Trainer& t, const py::object& data) { return t.evaluate(data, &BaseTrainer::validate); },
          py::arg("loader"), "The metrics over the loader's batches, or over each of a dict of loaders.")
      .def(
          "test", [](Trainer& t, const py::object& data) { return t.evaluate(data, &BaseTrainer::test); },
          py::arg("loader"), "The metrics over the loader's batches, or over each of a dict of loaders.")
      .def("predict", &Trainer::predict, py::arg("batch"),
           "The model's outputs for one batch by name, predict(batch)['prediction'], without gradients, by the weights "
           "as they are now.")
      .def("predict_all", &Trainer::predict_all, py::arg("loader"), "The outputs of every batch, as dicts.")
      .def(
          "find_lr",
          [](Trainer& t, const py::object& loader, double min_lr, double max_lr, int64_t num_training,
             double early_stop_threshold) {
            return t.find_lr(loader, {min_lr, max_lr, num_training, early_stop_threshold});
          },
          py::arg("loader"), py::arg("min_lr") = 1e-8, py::arg("max_lr") = 1.0, py::arg("num_training") = 100,
          py::arg("early_stop_threshold") = 4.0,
          "The loss while the learning rate rises exponentially from min_lr to max_lr in num_training steps, or to "
          "where "
          "it is early_stop_threshold times its least (0: never). Weights, optimizer, torch's default generators and "
          "counters are afterwards what they were.")
      .def("explain", &Trainer::explain, py::arg("batch"),
           "What graph mode would make of a step with this batch; nothing is trained.")
      .def(
          "report",
          [](Trainer& t) {
            const auto* graph = dynamic_cast<const GraphTrainer*>(&t.get());
            return to_list(graph == nullptr ? std::vector<SignatureReport>() : graph->report());
          },
          "One dict per signature of the step: state, reason, replays, ..., and what was not checked (host_code).");
}

void bind_state(py::class_<Trainer>& bound) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  bound
      .def(
          "save", [](Trainer& t, const std::string& folder) { return t.get().save(folder); }, unlocked,
          py::arg("folder"), "Saves everything as <folder>/step-<step> and returns that path.")
      .def(
          "load", [](Trainer& t, const std::string& path) { t.get().load(path); }, unlocked, py::arg("path"),
          "Goes on from a checkpoint, or from the newest good one in a folder of them.")
      .def(
          "load_weights",
          [](Trainer& t, const std::string& path, bool strict) {
            return t.get().load_weights(read_weights({.path = path}), strict).text();
          },
          unlocked, py::arg("path"), py::arg("strict") = true,
          "Weights alone, from a checkpoint, a safetensors file or a file of torch.save.")
      .def(
          "weights",
          [](Trainer& t) {
            const py::dict weights = to_dict(t.get().weights());
            for (const std::string& name : t.get().task().unsaved_buffers()) weights.attr("pop")(name, py::none());
            return weights;
          },
          "Parameters and buffers, shared; no buffer that is not persistent, as in the model's state_dict().")
      .def(
          "state_dict", [](Trainer& t) { return to_dict(t.get().state_dict()); },
          "All that a bit-exact resume needs, flat. Its tensors are the live ones: clone what you keep.")
      .def(
          "load_state_dict",
          [](Trainer& t, const py::dict& state) {
            const StateDict given = to_state(state);
            const py::gil_scoped_release no_gil;
            t.get().load_state_dict(given);
          },
          py::arg("state"))
      .def_property_readonly("model", &Trainer::model)
      .def_property_readonly("result", result_of, "loss and logged values of the latest step, 0-dim tensors")
      .def_property_readonly("mode", [](Trainer& t) { return to_string(t.get().mode()); })
      .def_property_readonly("progress", [](Trainer& t) { return t.get().progress(); })
      .def_property_readonly("finished", [](Trainer& t) { return t.get().finished(); })
      .def_property_readonly("stop_reason", [](Trainer& t) { return t.get().stop_reason(); })
      .def_property_readonly(
          "outcome", [](Trainer& t) { return to_string(t.get().outcome()); },
          "how the last run ended: 'finished', 'stopped', 'interrupted', 'diverged' or 'failed'; 'none' before one");
}

}  // namespace

py::list to_list(const std::vector<SignatureReport>& reports) {
  py::list dicts;
  for (const SignatureReport& report : reports) dicts.append(dict_of(report));
  return dicts;
}

void bind_trainer(py::module_& module) {
  bind_explanation(module);
  bind_curve(module);
  py::class_<Trainer> bound(module, "BaseTrainer", collected<Trainer>(),
                            "The loop around the steps, the same in both modes.");
  bound.def(py::init([](const std::string& mode, py::object model, const py::kwargs& arguments) {
              return std::make_unique<Trainer>(parse_mode(mode), std::move(model), arguments);
            }),
            py::arg("mode"), py::arg("model"));
  bind_loop(bound);
  bind_evaluation(bound);
  bind_state(bound);
}

}  // namespace duet::python
