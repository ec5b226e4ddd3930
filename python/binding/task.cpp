#include "python/binding/task.h"
#include <utility>
#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/util/StringUtil.h>
#include "base/detail/pattern.h"
#include "base/error.h"
#include "python/binding/batch_tree.h"
#include "python/binding/code_place.h"

namespace duet::python {

namespace {

bool is_tensor(const py::handle& object) { return THPVariable_Check(object.ptr()); }

// Every value that is a tensor, by its key.
NamedTensors tensors_in(const py::handle& mapping) {
  NamedTensors tensors;
  for (const py::handle key : py::list(mapping.attr("keys")())) {
    const py::object value = mapping[key];
    if (is_tensor(value)) tensors.emplace_back(py::cast<std::string>(py::str(key)), py::cast<at::Tensor>(value));
  }
  return tensors;
}

bool is_mapping(const py::handle& object) { return py::hasattr(object, "keys"); }

enum class LogFrom { kLog, kOutput };

bool is_one_number(const at::Tensor& tensor, LogFrom from) {
  return tensor.dim() == 0 || (from == LogFrom::kLog && tensor.numel() == 1);
}

// What a step logs: all of a log, and of a model's output the 0-dim tensors. A number would stay what it was when the
// step was captured.
void add_log(const py::handle& mapping, LogFrom from, NamedTensors& log) {
  for (const py::handle key : py::list(mapping.attr("keys")())) {
    const auto name = py::cast<std::string>(py::str(key));
    const py::object value = mapping[key];
    if (name == "loss") continue;
    if (is_tensor(value) && is_one_number(py::cast<at::Tensor>(value), from)) {
      log.emplace_back(name, py::cast<at::Tensor>(value).detach().reshape({}));
    } else if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) {
      throw ConfigError("[Task] the loss function gives '" + name + "' as a number, which a replayed step would " +
                        "freeze; give a 0-dim tensor");
    } else if (from == LogFrom::kLog) {
      const std::string what =
          is_tensor(value) ? c10::str("tensor of shape ", py::cast<at::Tensor>(value).sizes()) : type_name(value);
      throw ConfigError("[Task] the loss function logs '" + name + "' as a " + what +
                        ", expected a 0-dim tensor; take its mean, or leave it out");
    }
  }
}

at::Tensor loss_in(const py::handle& object) {
  if (is_tensor(object)) return py::cast<at::Tensor>(object);
  throw ConfigError(
      "[Task] the loss function gives a " + type_name(object) +
      ", expected a 0-dim tensor, a pair (loss, {name: 0-dim tensor}), a dict or an output with a 'loss'");
}

// A loss as people give it: a tensor, (loss, log), a dict with "loss", or Hugging Face's output with a loss.
StepOutput to_step_output(const py::object& result) {
  StepOutput output;
  if (PyTuple_Check(result.ptr()) && py::len(result) == 2) {
    output.loss = loss_in(result[py::int_(0)]);
    const py::object log = result[py::int_(1)];
    if (is_mapping(log)) add_log(log, LogFrom::kLog, output.log);
  } else if (is_mapping(result) && py::bool_(result.attr("__contains__")("loss"))) {
    output.loss = loss_in(result["loss"]);
    add_log(result, LogFrom::kOutput, output.log);
  } else {
    output.loss = loss_in(result);
  }
  return output;
}

// Outputs of an evaluation: a tensor is the prediction.
NamedTensors to_outputs(const py::object& result) {
  if (is_tensor(result)) return {{"prediction", py::cast<at::Tensor>(result)}};
  if (is_mapping(result)) return tensors_in(result);
  throw ConfigError("[Task] found a " + type_name(result) + " as prediction, expected a tensor or a dict of tensors");
}

void add_new(NamedTensors& outputs, const NamedTensors& further) {
  for (const auto& item : further) {
    bool known = false;
    for (const auto& output : outputs) known = known || output.first == item.first;
    if (!known) outputs.push_back(item);
  }
}

ModuleKind kind_of(const py::handle& module, const py::module_& nn) {
  const auto is = [&](const py::object& type) { return py::isinstance(module, type); };
  const py::object batch_norm = nn.attr("modules").attr("batchnorm").attr("_NormBase");  // instance norms too
  if (is(batch_norm) || is(nn.attr("GroupNorm")) || is(nn.attr("LayerNorm"))) return ModuleKind::kNorm;
  if (!is(nn.attr("Conv2d"))) return ModuleKind::kOther;
  const bool depthwise = module.attr("in_channels").equal(module.attr("groups"));
  return depthwise ? ModuleKind::kDepthwiseConv2d : ModuleKind::kConv2d;
}

// Whether the text is that of a container of Python's or NumPy's, not of a tensor.
bool is_about_container(const std::string& text) {
  static const Pattern known("(list|tuple|string|bytes|bytearray|array|range object|deque|pop) .*|.* for axis .*");
  return known.matches(text);
}

// Whether PyTorch has thrown it, not a `raise` of Python code nor Python itself.
bool is_of_op(const py::error_already_set& error) {
  const PyObject* type = error.type().ptr();
  const bool fits = type == PyExc_RuntimeError || type == PyExc_NotImplementedError ||
                    (type == PyExc_IndexError && !is_about_container(py::cast<std::string>(py::str(error.value()))));
  py::object place = error.trace();
  if (!fits || !place || place.is_none()) return false;
  while (!place.attr("tb_next").is_none()) place = place.attr("tb_next");
  const py::object code = place.attr("tb_frame").attr("f_code").attr("co_code")[place.attr("tb_lasti")];
  const auto name = py::cast<std::string>(py::module_::import("opcode").attr("opname")[code]);
  return name != "RAISE_VARARGS" && name != "RERAISE";
}

// A model may ask whether its stream is being captured and take another branch then (the masks of transformers). The
// steps before were not captured, and the graph is to do what they did: so it is told no.
class HiddenCapture {
 public:
  HiddenCapture() {
    if (!at::hasCUDA() || !py::cast<bool>(cuda().attr(kName)())) return;
    known_ = cuda().attr(kName);
    cuda().attr(kName) = py::cpp_function([] { return false; });
  }
  ~HiddenCapture() {
    if (known_) cuda().attr(kName) = known_;
  }
  HiddenCapture(const HiddenCapture&) = delete;
  HiddenCapture& operator=(const HiddenCapture&) = delete;

 private:
  static constexpr const char* kName = "is_current_stream_capturing";
  static py::module_ cuda() { return py::module_::import("torch.cuda"); }

  py::object known_;
};

// Calls Python code of a step; an op's error in it becomes one that can be told where it came.
template <class Call>
auto in_step(const Call& call) {
  const UserCode code;
  const HiddenCapture hidden;
  try {
    return call();
  } catch (const py::error_already_set& error) {
    if (!is_of_op(error)) throw;
    const auto text = py::cast<std::string>(py::str(error.value()));
    std::throw_with_nested(StepError(text.substr(0, text.find('\n'))));
  }
}

SharedObject list_of_modules(const py::object& model) { return share(py::list(model.attr("modules")())); }

SharedObject list_of(const PythonTask::Functions& functions) {
  py::list list;
  for (const SharedObject& function : {functions.loss, functions.forward, functions.validation, functions.predict}) {
    if (function) list.append(*function);
  }
  if (functions.further) list += *functions.further;
  return share(std::move(list));
}

}  // namespace

PythonTask::PythonTask(const py::object& model, Functions functions)
    : model_(share(model)),
      functions_(std::move(functions)),
      modules_(list_of_modules(model)),
      host_state_(model_, list_of(functions_)) {}

void PythonTask::leave_out_further() { host_state_.remove(py::list(*functions_.further)); }

NamedTensors PythonTask::named(const char* method, bool deduplicated) const {
  const py::gil_scoped_acquire gil;
  NamedTensors tensors;
  for (const py::handle item : model_->attr(method)(py::arg("remove_duplicate") = deduplicated)) {
    const auto pair = py::cast<py::tuple>(item);
    tensors.emplace_back(py::cast<std::string>(pair[0]), py::cast<at::Tensor>(pair[1]));
  }
  return tensors;
}

NamedTensors PythonTask::named_parameters() const { return named("named_parameters", /*deduplicated=*/true); }
NamedTensors PythonTask::named_buffers() const { return named("named_buffers", /*deduplicated=*/true); }

std::map<std::string, std::string> PythonTask::tied_names() const {
  return aliases_of(named("named_parameters", /*deduplicated=*/false), named("named_buffers", /*deduplicated=*/false));
}

std::vector<std::string> PythonTask::unsaved_buffers() const {
  const py::gil_scoped_acquire gil;
  std::vector<std::string> names;
  for (const py::handle item : model_->attr("named_modules")()) {
    const auto pair = py::cast<py::tuple>(item);
    const auto path = py::cast<std::string>(pair[0]);
    for (const py::handle name : pair[1].attr("_non_persistent_buffers_set")) {
      names.push_back(path + (path.empty() ? "" : ".") + py::cast<std::string>(name));
    }
  }
  return names;
}

std::vector<ModuleInfo> PythonTask::modules() const {
  const py::gil_scoped_acquire gil;
  const py::module_ nn = py::module_::import("torch.nn");
  std::vector<ModuleInfo> infos;
  for (const py::handle item : model_->attr("named_modules")()) {
    const auto pair = py::cast<py::tuple>(item);
    infos.push_back({py::cast<std::string>(pair[0]), type_name(pair[1]), kind_of(pair[1], nn)});
  }
  return infos;
}

void PythonTask::train(bool on) {
  const py::gil_scoped_acquire gil;
  model_->attr("train")(on);
  for (const std::string& name : held_) model_->attr("get_submodule")(name).attr("train")(false);
}

void PythonTask::hold_in_evaluation(const std::vector<std::string>& modules) {
  held_.insert(held_.end(), modules.begin(), modules.end());
}

// A model may have got other modules since it was made a task.
std::vector<bool> PythonTask::training_flags() const {
  const py::gil_scoped_acquire gil;
  flagged_ = modules_ = list_of_modules(*model_);
  std::vector<bool> flags;
  for (const py::handle module : *modules_) flags.push_back(py::cast<bool>(module.attr("training")));
  return flags;
}

void PythonTask::set_training_flags(const std::vector<bool>& flags) {
  const py::gil_scoped_acquire gil;
  std::size_t next = 0;
  for (const py::handle module : *flagged_) {
    if (next == flags.size()) return;  // flags of before it was there
    module.attr("training") = py::bool_(flags[next++]);
  }
}

void PythonTask::append_key(std::vector<int64_t>& key) const {
  const py::gil_scoped_acquire gil;
  static const auto* name = new py::str("training");
  const std::optional<uint64_t> numbers = numbers_for_key();
  if (numbers && *numbers != numbers_) modules_ = list_of_modules(*model_);
  int64_t flags = 1;
  const auto* list = modules_->ptr();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    if (flags >= int64_t{1} << 60) key.push_back(std::exchange(flags, 1));
    const auto flag = py::reinterpret_steal<py::object>(PyObject_GetAttr(PyList_GET_ITEM(list, i), name->ptr()));
    if (!flag) throw py::error_already_set();
    flags = 2 * flags + (flag.ptr() == Py_True ? 1 : 0);
  }
  key.push_back(flags);
  key.push_back(static_cast<int64_t>(HostState::function_modes()));
  // What the loop sets between its steps.
  if (!numbers) return;
  constexpr int64_t kSeldom = 8, kLong = 16;
  if (std::exchange(numbers_, *numbers) != *numbers) {
    quick_changes_ = std::exchange(same_numbers_, 0) < kSeldom ? quick_changes_ + 1 : 0;
  } else if (++same_numbers_ >= kLong) {
    quick_changes_ = 0;
  }
  if (!leaves_out_numbers()) key.push_back(static_cast<int64_t>(*numbers));
}

// None: they are left out, and looked at now and then, whether a schedule has come to its end.
std::optional<uint64_t> PythonTask::numbers_for_key() const {
  constexpr int64_t kApart = 17;  // keys, no usual period
  if (moves_numbers_ || (leaves_out_numbers() && ++keys_ % kApart != 0)) return std::nullopt;
  const uint64_t numbers = host_state_.numbers();
  moves_numbers_ = !host_state_.sees_all();
  return numbers;
}

void PythonTask::to(at::Device device) {
  const py::gil_scoped_acquire gil;
  model_->attr("to")(device.str());
}

py::object PythonTask::forward(const py::object& batch) const {
  return functions_.forward ? (*functions_.forward)(*model_, batch) : py::object();
}

py::object PythonTask::loss(const py::object& prediction, const py::object& batch) const {
  return functions_.forward ? (*functions_.loss)(prediction, batch) : (*functions_.loss)(*model_, batch);
}

StepOutput PythonTask::training_step(const Batch& batch) {
  const py::gil_scoped_acquire gil;
  const py::object given = to_python(batch);
  const bool looks = !leaves_out_numbers();
  const uint64_t numbers = looks ? host_state_.numbers() : 0;
  const uint64_t random_numbers = moves_random_numbers_ ? 0 : host_state_.random_numbers();
  py::object prediction;
  StepOutput output = in_step([&] {
    prediction = forward(given);
    return to_step_output(loss(prediction, given));
  });
  if (prediction && (is_tensor(prediction) || is_mapping(prediction))) output.outputs = to_outputs(prediction);
  // Once is what a model sets up in its first step (problem_type of transformers' configs): the next steps have its
  // key.
  const bool moved = looks && host_state_.numbers(/*after_step=*/true) != numbers;
  moves_numbers_ = moves_numbers_ || (moved && has_moved_numbers_);
  has_moved_numbers_ = has_moved_numbers_ || moved;
  moves_random_numbers_ = moves_random_numbers_ || host_state_.random_numbers() != random_numbers;
  keep_if_needed(output.loss, moves_random_numbers_);
  return output;
}

void PythonTask::keep_if_needed(const at::Tensor& of_step, bool moves_random_numbers) {
  const bool is_seen = HostState::has_function_modes() || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  if (leaves_out_numbers() || moves_random_numbers || is_seen) kept_ = of_step.detach();
}

double PythonTask::weight(const Batch& batch) const {
  if (!functions_.weight) return batch.items().empty() ? 1 : Task::weight(batch);
  const py::gil_scoped_acquire gil;
  return py::cast<double>(py::float_((*functions_.weight)(to_python(batch))));
}

// With the model's own outputs beside the loss, as metrics need them.
NamedTensors PythonTask::validation_step(const Batch& batch) {
  const py::gil_scoped_acquire gil;
  const py::object given = to_python(batch);
  return evaluated([&] { return validation_of(given); });
}

NamedTensors PythonTask::evaluated(const std::function<NamedTensors()>& evaluate) {
  const uint64_t random_numbers = evaluation_moves_random_numbers_ ? 0 : host_state_.random_numbers();
  NamedTensors outputs = in_step(evaluate);
  evaluation_moves_random_numbers_ = evaluation_moves_random_numbers_ || host_state_.random_numbers() != random_numbers;
  if (!outputs.empty()) keep_if_needed(outputs.front().second, evaluation_moves_random_numbers_);
  return outputs;
}

NamedTensors PythonTask::validation_of(const py::object& given) const {
  if (functions_.validation) return to_outputs((*functions_.validation)(*model_, given));
  const py::object prediction = forward(given), result = loss(prediction, given);
  StepOutput output = to_step_output(result);
  NamedTensors outputs = std::move(output.log);
  outputs.emplace_back("loss", output.loss);
  if (prediction) add_new(outputs, to_outputs(prediction));
  if (is_mapping(result)) add_new(outputs, tensors_in(result));
  return outputs;
}

NamedTensors PythonTask::predict(const Batch& batch) {
  require<ConfigError>(
      functions_.predict || functions_.forward,
      "[Task] found neither forward nor predict_step, expected one of them to predict with; give the "
      "trainer forward=lambda model, batch: ..., and a loss of what it returns: loss(prediction, batch)");
  const py::gil_scoped_acquire gil;
  const py::object given = to_python(batch);
  return evaluated(
      [&] { return to_outputs(functions_.predict ? (*functions_.predict)(*model_, given) : forward(given)); });
}

void PythonTask::visit_kept(const VisitKept& visit) const {
  visit(model_);
  visit(modules_);
  if (flagged_ != modules_) visit(flagged_);  // one reference
  host_state_.visit_kept(visit);
  for (const SharedObject& function : {functions_.loss, functions_.forward, functions_.validation, functions_.predict,
                                       functions_.weight, functions_.graph_key, functions_.further}) {
    visit(function);
  }
}

std::string PythonTask::graph_key() const {
  if (!functions_.graph_key) return {};
  const py::gil_scoped_acquire gil;
  return shown((*functions_.graph_key)());
}

}  // namespace duet::python
