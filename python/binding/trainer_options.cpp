#include "python/binding/trainer_options.h"
#include <algorithm>
#include <functional>
#include <map>
#include <torch/csrc/Dtype.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "python/binding/bind.h"
#include "python/binding/options.h"

namespace duet::python {

namespace {

template <class... Options>
void bind_optimizers(py::module_& module) {
  (bind_product<std::optional<OptimizerOptions>, Options>(
       module, Options::fields().name().c_str(),
       "The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.",
       [](const Options& options) { return OptimizerOptions(options); }),
   ...);
}

template <class... Options>
void bind_schedules(py::module_& module) {
  (bind_product<std::optional<Schedule>, Options>(
       module, type_of(Options{}).c_str(), "A schedule of one hyper-parameter over steps [begin, end), as mmengine's.",
       [](const Options& options) { return Schedule(options); }),
   ...);
}

// A value that its option cannot have.
struct BadValue {
  py::object value;
  const char* expected;
};

[[noreturn]] void refuse(const py::handle& value, const char* expected) {
  throw BadValue{py::reinterpret_borrow<py::object>(value), expected};
}

OptimizerOptions to_optimizer(const py::handle& object) {
  if (auto found = made_of<std::optional<OptimizerOptions>>(object)) return *std::move(found);
  refuse(object, "duet.AdamW(lr=...) or another of duet's; for an optimizer of torch.optim there is duet.graph_step");
}

std::vector<Schedule> to_schedules(const py::handle& object) {
  std::vector<Schedule> made;
  for (const py::handle item :
       py::isinstance<py::list>(object) ? py::cast<py::list>(object) : py::list(py::make_tuple(object))) {
    std::optional<Schedule> found = made_of<std::optional<Schedule>>(item);
    if (!found) refuse(item, "duet.Linear(end=100), duet.Cosine(begin=100) and their like");
    made.push_back(*std::move(found));
  }
  return made;
}

std::optional<ClipGrad> to_clip(const py::handle& object) {
  if (object.is_none()) return std::nullopt;
  if (py::isinstance<ClipNorm>(object)) return ClipGrad(py::cast<ClipNorm>(object));
  if (py::isinstance<ClipValue>(object)) return ClipGrad(py::cast<ClipValue>(object));
  if (py::isinstance<ClipAdaptive>(object)) return ClipGrad(py::cast<ClipAdaptive>(object));
  if (PyFloat_Check(object.ptr()) || (PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr())))
    return ClipGrad(ClipNorm{.max_norm = py::cast<double>(object)});
  refuse(object, "duet.ClipNorm(max_norm=1.0), duet.ClipValue(clip_value=0.5), duet.ClipAdaptive(), a norm, or None");
}

std::optional<at::ScalarType> to_amp(const py::handle& object) {
  if (object.is_none()) return std::nullopt;
  if (THPDtype_Check(object.ptr())) return reinterpret_cast<THPDtype*>(object.ptr())->scalar_type;
  refuse(object, "torch.bfloat16, torch.float16 or None");
}

NonFinite to_non_finite(const py::handle& object) {
  const std::map<std::string, NonFinite> words = {
      {"apply", NonFinite::kApply}, {"skip", NonFinite::kSkip}, {"raise", NonFinite::kRaise}};
  const auto found = PyUnicode_Check(object.ptr()) ? words.find(py::cast<std::string>(object)) : words.end();
  if (found == words.end()) refuse(object, "'apply', 'skip' or 'raise'");
  return found->second;
}

// Groups as torch.optim takes them: [{"params": [...], "lr": ...}, ...], parameters or their names.
ParamGroups to_groups(const py::handle& object, const NamedTensors& parameters) {
  ParamGroups groups;
  for (const py::handle item : object) {
    ParamGroup group;
    for (const auto& [key, value] : py::cast<py::dict>(item)) {
      const auto name = py::cast<std::string>(key);
      if (name == "name") {
        group.name = py::cast<std::string>(value);
      } else if (name == "betas") {
        const auto betas = py::cast<std::pair<double, double>>(value);
        group.numbers["beta1"] = betas.first;
        group.numbers["beta2"] = betas.second;
      } else if (name != "params") {
        group.numbers[name] = py::cast<double>(value);
      }
    }
    require<ConfigError>(item.contains("params"), "[Trainer] a group of param_groups has no 'params'");
    const py::object given = item["params"];
    const bool one = THPVariable_Check(given.ptr()) || PyUnicode_Check(given.ptr());
    for (const py::handle parameter : one ? py::list(py::make_tuple(given)) : py::list(given)) {
      bool found = false;
      for (const auto& known : parameters) {
        const bool same = THPVariable_Check(parameter.ptr()) ? THPVariable_Unpack(parameter.ptr()).is_same(known.second)
                                                             : py::cast<std::string>(py::str(parameter)) == known.first;
        if (!same) continue;
        group.parameters.push_back(known);
        found = true;
      }
      require<ConfigError>(found, "[Trainer] param_groups name something that is no parameter of the model");
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

SharedObject to_function(const py::handle& object) {
  if (object.is_none()) return nullptr;
  if (PyCallable_Check(object.ptr()) == 0) refuse(object, "a function");
  return share(py::reinterpret_borrow<py::object>(object));
}

using Reader = std::function<void(TrainerArguments&, const py::handle&)>;

std::map<std::string, Reader> readers() {
  std::map<std::string, Reader> by_name;
  const auto add = [&by_name](const char* name, Reader reader) { by_name[name] = std::move(reader); };
  const auto add_function = [&](const char* name, SharedObject PythonTask::Functions::* member) {
    add(name, [=](TrainerArguments& a, const py::handle& o) { a.functions.*member = to_function(o); });
  };
  add_function("loss", &PythonTask::Functions::loss);
  add_function("forward", &PythonTask::Functions::forward);
  add_function("validation_step", &PythonTask::Functions::validation);
  add_function("predict_step", &PythonTask::Functions::predict);
  add_function("weight", &PythonTask::Functions::weight);
  add_function("graph_key", &PythonTask::Functions::graph_key);
  add("optimizer", [](TrainerArguments& a, const py::handle& o) { a.options.optimizer = to_optimizer(o); });
  add("schedules", [](TrainerArguments& a, const py::handle& o) { a.options.schedules = to_schedules(o); });
  add("clip_grad", [](TrainerArguments& a, const py::handle& o) { a.options.clip_grad = to_clip(o); });
  add("amp", [](TrainerArguments& a, const py::handle& o) { a.options.amp = to_amp(o); });
  add("amp_eval", [](TrainerArguments& a, const py::handle& o) { a.options.amp_eval = py::cast<bool>(o); });
  add("loss_scale", [](TrainerArguments& a, const py::handle& o) {
    if (!o.is_none()) a.options.loss_scale = py::cast<LossScaleOptions>(o);
  });
  add("log_grad_norm", [](TrainerArguments& a, const py::handle& o) { a.options.log_grad_norm = py::cast<bool>(o); });
  add("non_finite", [](TrainerArguments& a, const py::handle& o) { a.options.non_finite = to_non_finite(o); });
  add("param_groups", [](TrainerArguments& a, const py::handle& o) {
    if (o.is_none()) return;
    a.options.param_groups = [groups = share(py::reinterpret_borrow<py::object>(o))](Task& task,
                                                                                     const OptimizerOptions&) {
      const py::gil_scoped_acquire gil;
      return to_groups(*groups, task.named_parameters());
    };
  });
  add("allow_untrained",
      [](TrainerArguments& a, const py::handle& o) { a.options.allow_untrained = py::cast<bool>(o); });
  add("freeze", [](TrainerArguments& a, const py::handle& o) {
    a.options.freeze = py::isinstance<py::str>(o) ? std::vector<std::string>{py::cast<std::string>(o)}
                                                  : py::cast<std::vector<std::string>>(o);
  });
  add("work_dir", [](TrainerArguments& a, const py::handle& o) {
    a.options.work_dir = o.is_none() ? "" : py::cast<std::string>(py::str(o));
  });
  add("device", [](TrainerArguments& a, const py::handle& o) { a.options.device = py::cast<std::string>(py::str(o)); });
  add("hooks", [](TrainerArguments& a, const py::handle& o) { a.hooks = py::cast<std::vector<py::object>>(o); });
  add("metrics", [](TrainerArguments& a, const py::handle& o) { a.metrics = py::cast<std::vector<py::object>>(o); });
  add("default_hooks", [](TrainerArguments& a, const py::handle& o) { a.default_hooks = py::cast<bool>(o); });
  const auto add_fields = [&add](const OptionFields& fields, auto options_in) {
    for (const OptionField& field : fields) {
      if (!field.is_member()) continue;
      add(field.name.c_str(), [&field, options_in](TrainerArguments& a, const py::handle& o) {
        field.set(options_in(a), to_option(a.caller, field, o));
      });
    }
  };
  add_fields(LoopOptions::fields(), [](TrainerArguments& a) { return &a.options.loop; });
  add_fields(GraphOptions::fields(), [](TrainerArguments& a) { return &a.graph; });
  add_fields(DistributedOptions::fields(), [](TrainerArguments& a) { return &a.options.distributed; });
  return by_name;
}

const std::map<std::string, Reader>& all_readers() {
  static const auto* by_name = new std::map<std::string, Reader>(readers());
  return *by_name;
}

}  // namespace

std::vector<std::string> trainer_arguments() { return keys_in(all_readers()); }

void bind_trainer_options(py::module_& module) {
  bind_optimizers<SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Lion, Muon, Adadelta, Adafactor, Adamax, ASGD,
                  Rprop, SparseAdam, LBFGS>(module);
  bind_schedules<Constant, Linear, Polynomial, Step, MultiStep, Exponential, Cosine, CosineRestart, OneCycle, WSD,
                 ReduceOnPlateau>(module);
  bind_options<ClipNorm>(module, "ClipNorm", "Scales all gradients so that their norm is at most max_norm.");
  bind_options<ClipValue>(module, "ClipValue", "Clamps every element of the gradients.");
  bind_options<ClipAdaptive>(module, "ClipAdaptive", "Adaptive clipping of NFNets, unit by unit.");
  bind_options<LossScaleOptions>(module, "LossScale", "Scaling of the loss for float16, as torch.amp.GradScaler's.");
}

TrainerArguments read_arguments(const py::kwargs& arguments, const std::string& caller,
                                const std::vector<std::string>& taken) {
  TrainerArguments sorted{.caller = caller};
  const auto refuse_value = [&caller](const std::string& name, const py::handle& value, const char* expected) {
    throw ConfigError("[" + caller + "] " + name + " is " + shown(value) + ", expected " + expected);
  };
  for (const auto& [key, value] : arguments) {
    const auto name = py::cast<std::string>(key);
    if (std::ranges::find(taken, name) == taken.end()) {
      throw ConfigError("[" + caller + "] there is no option '" + name + "'; " + known_and_nearest(name, taken));
    }
    try {
      all_readers().at(name)(sorted, value);
    } catch (const BadValue& bad) {
      refuse_value(name, bad.value, bad.expected);
    } catch (const py::cast_error&) {
      refuse_value(name, value, "another type; help(duet.GraphTrainer) says which");
    }
  }
  return sorted;
}

}  // namespace duet::python
