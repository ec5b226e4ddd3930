#include "python/binding/hooks.h"
#include <algorithm>
#include <string>
#include <vector>
#include <c10/util/ScopeExit.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/early_stopping_hook.h"
#include "hooks/ema_hook.h"
#include "hooks/epoch_hooks.h"
#include "hooks/histogram_hook.h"
#include "hooks/logger_hook.h"
#include "hooks/nan_guard_hook.h"
#include "hooks/precise_bn_hook.h"
#include "hooks/prediction_hooks.h"
#include "hooks/profiler_hook.h"
#include "hooks/stop_signal_hook.h"
#include "hooks/throughput_hook.h"
#include "python/binding/bind.h"
#include "python/binding/context.h"
#include "python/binding/options.h"
#include "python/binding/source.h"

namespace duet::python {

namespace {

// Calls methods of a Python object at the points that its class defines.
class PythonHook : public Hook {
 public:
  explicit PythonHook(py::object object) : object_(share(object)) {
    const py::object given = optional_attribute(object, "name");
    name_ = given ? py::cast<std::string>(py::str(given)) : type_name(object);
    priority_ = py::cast<int>(py::getattr(object, "priority", py::int_(static_cast<int>(kNormal))));
    wants_outputs_ = py::cast<bool>(py::getattr(object, "wants_outputs", py::bool_(false)));
    if (py::hasattr(object, "after")) after_ = py::cast<std::vector<std::string>>(object.attr("after"));
#define DUET_LOOK(point, member) set_used(HookPoint::point, py::hasattr(object, #member));
    DUET_HOOK_POINTS(DUET_LOOK)
    DUET_LOOK(kInStep, in_step)
#undef DUET_LOOK
  }

  std::string name() const override { return name_; }
  int priority() const override { return priority_; }
  std::vector<std::string> after() const override { return after_; }
  bool wants_outputs() const override { return wants_outputs_; }

#define DUET_CALL(point, member) \
  void member(TrainContext& context) override { call(HookPoint::point, #member, context); }
  DUET_HOOK_POINTS(DUET_CALL)
#undef DUET_CALL
  void in_step(StepView& view) override { call(HookPoint::kInStep, "in_step", view); }

  StateDict state_dict() const override {
    const py::gil_scoped_acquire gil;
    return py::hasattr(*object_, "state_dict") ? to_state(object_->attr("state_dict")()) : StateDict();
  }
  void load_state_dict(const StateDict& state) override {
    const py::gil_scoped_acquire gil;
    if (py::hasattr(*object_, "load_state_dict")) object_->attr("load_state_dict")(to_dict(state));
  }

 private:
  template <class Context>
  void call(HookPoint point, const char* member, Context& context) {
    if (!uses(point)) return;
    const py::gil_scoped_acquire gil;
    const auto lent = std::make_shared<Lent<Context>>(context);
    const auto afterwards = c10::make_scope_exit([&lent] { lent->end(); });
    object_->attr(member)(lent);
  }

  SharedObject object_;
  std::string name_;
  int priority_ = kNormal;
  std::vector<std::string> after_;
  bool wants_outputs_ = false;
};

using MadeHook = std::unique_ptr<Hook>;

template <class H, class Options>
void bind_hook(py::module_& module, const char* name, const char* summary) {
  bind_product<MadeHook, Options>(module, name, summary,
                                  [](const Options& options) { return as_hook(std::make_unique<H>(options)); });
}

// What makes a PreciseBNHook, which has data besides options.
struct PreciseBN {
  SharedObject data;
  PreciseBNHookOptions options;
};

void bind_precise_bn(py::module_& module) {
  py::class_<PreciseBN>(module, "PreciseBNHook",
                        "Recomputes the running statistics of batch norm before each validation; the next step goes on "
                        "with training's own.")
      .def(py::init([](py::object data, int64_t num_iter) {
             return PreciseBN{share(std::move(data)), {.num_iter = num_iter}};
           }),
           py::arg("data"), py::kw_only(), py::arg("num_iter") = PreciseBNHookOptions().num_iter,
           "data: batches of the training data, from a loader of its own; on several ranks each has its own part. "
           "num_iter: how many of them the statistics are taken over.");
  add_maker<MadeHook, PreciseBN>([](const PreciseBN& given) {
    return as_hook(std::make_unique<PreciseBNHook>(std::make_shared<PythonSource>(*given.data), given.options));
  });
}

const std::vector<std::string>& point_names() {
  static const std::vector<std::string> names = {
#define DUET_NAME(point, member) #member,
      DUET_HOOK_POINTS(DUET_NAME)
#undef DUET_NAME
          "in_step",
  };
  return names;
}

// A method that is called like no point would never run.
void check_methods(const py::handle& object) {
  refuse_class(object, "Hook");
  const std::vector<std::string>& points = point_names();
  bool any = false;
  for (const py::handle attribute : py::module_::import("builtins").attr("dir")(object)) {
    const auto name = py::cast<std::string>(attribute);
    const bool known = std::find(points.begin(), points.end(), name) != points.end();
    any = any || known;
    const bool looks_like_one =
        name.rfind("before_", 0) == 0 || name.rfind("after_", 0) == 0 || name.rfind("on_", 0) == 0;
    if (known || !looks_like_one || PyCallable_Check(py::object(object.attr(attribute)).ptr()) == 0) continue;
    throw ConfigError("[Hook] " + shown(object) + " has a method '" + name + "', which is no hook point" +
                      did_you_mean(name, points));
  }
  require<ConfigError>(
      any, "[Hook] " + shown(object) + " has no method of a hook point (before_train, after_train_iter, ...)");
}

}  // namespace

void bind_hooks(py::module_& module) {
  bind_hook<CheckpointHook, CheckpointHookOptions>(module, "CheckpointHook",
                                                   "Saves the whole state under <work_dir>/checkpoints.");
  bind_hook<EarlyStoppingHook, EarlyStoppingHookOptions>(module, "EarlyStoppingHook",
                                                         "Ends training when a metric no longer improves.");
  bind_hook<EMAHook, EMAHookOptions>(module, "EMAHook", "Keeps an average of the weights, updated inside the step.");
  bind_hook<EmptyCacheHook, EmptyCacheHookOptions>(module, "EmptyCacheHook", "Gives cached memory back to the device.");
  bind_hook<HistogramHook, HistogramHookOptions>(module, "HistogramHook",
                                                 "Logs how values of parameters and gradients are spread.");
  bind_hook<LoggerHook, LoggerHookOptions>(module, "LoggerHook", "Lines on the terminal and in JSONL.");
  bind_hook<NaNGuardHook, NaNGuardHookOptions>(module, "NaNGuardHook",
                                               "Watches that loss and gradient norm stay finite.");
  bind_precise_bn(module);
  bind_hook<PredictionWriterHook, PredictionWriterHookOptions>(module, "PredictionWriterHook",
                                                               "Writes what the model predicts.");
  bind_hook<ProfilerHook, ProfilerHookOptions>(module, "ProfilerHook", "Writes traces of some steps.");
  bind_hook<ThroughputHook, ThroughputHookOptions>(module, "ThroughputHook", "Tokens per second, FLOPs per step, MFU.");
  bind_hook<VisualizationHook, VisualizationHookOptions>(module, "VisualizationHook", "Draws predictions.");
  bind_plain<MadeHook>(module, "StopSignalHook",
                       "Interrupts training when SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU asks for it.",
                       [] { return as_hook(std::make_unique<StopSignalHook>()); });
  bind_plain<MadeHook>(module, "SyncBuffersHook", "Makes the buffers of the model the same on every rank.",
                       [] { return as_hook(std::make_unique<SyncBuffersHook>()); });
}

std::unique_ptr<Hook> to_hook(const py::handle& object) {
  if (auto hook = made_of<MadeHook>(object)) return hook;
  check_methods(object);
  return std::make_unique<PythonHook>(py::reinterpret_borrow<py::object>(object));
}

}  // namespace duet::python
