#include "python/binding/torch_optimizer.h"
#include <bit>
#include <unordered_map>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/detail/device_hyper_parameters.h"
#include "python/binding/torch_number.h"
#include "python/binding/torch_state.h"

namespace duet::python {

namespace {

bool truthy(const py::handle& mapping, const char* key) {
  return mapping.contains(key) && py::bool_(py::object(mapping[key]));
}

py::object number_in(const py::handle& group, const std::string& name) {
  if (name != "beta1" && name != "beta2") return group[name.c_str()];
  const py::object betas = group["betas"];
  return betas[py::int_(name == "beta1" ? 0 : 1)];
}

// Of a group: all that is no number which may change from step to step.
constexpr const char* kFlags[] = {"fused",      "amsgrad",        "maximize",
                                  "nesterov",   "centered",       "foreach",
                                  "capturable", "differentiable", "decoupled_weight_decay"};

// Somebody else's code in or around step(): a scheduler's count of calls does not matter.
bool has_own_step(const py::object& optimizer) {
  const py::object step = optimizer.attr("__dict__").attr("get")("step");
  return !step.is_none() && !py::hasattr(step, "_wrapped_by_lr_sched");
}

// The dicts of step()'s hooks, its own and everybody's.
py::list hooks_of(const py::object& optimizer) {
  const py::module_ module = py::module_::import("torch.optim.optimizer");
  py::list hooks;
  for (const char* name : {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"})
    hooks.append(optimizer.attr(name));
  for (const char* name : {"_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"})
    hooks.append(module.attr(name));
  return hooks;
}

// Embedding and EmbeddingBag can give sparse gradients.
bool has_sparse_layer(const py::object& model) {
  for (const py::handle module : model.attr("modules")()) {
    if (py::getattr(module, "sparse", py::none()).ptr() == Py_True) return true;
  }
  return false;
}

std::size_t count_hooks(const py::object& optimizer) {
  std::size_t count = 0;
  for (const py::handle hooks : hooks_of(optimizer)) count += py::len(hooks);
  return count;
}

bool is_true(PyObject* dict, const py::str& name) {
  PyObject* value = PyDict_GetItem(dict, name.ptr());
  return value != nullptr && PyObject_IsTrue(value) == 1;
}

}  // namespace

TorchOptimizer::TorchOptimizer(const py::object& model, const py::object& optimizer, const py::object& clip,
                               bool may_be_apart)
    : model_(share(model)), optimizer_(share(optimizer)) {
  const py::module_ optim = py::module_::import("torch.optim");
  require<ConfigError>(py::isinstance(optimizer, optim.attr("Optimizer")),
                       "[graph_step] the optimizer is a " + type_name(optimizer) + ", expected one of torch.optim");
  require<ConfigError>(!py::isinstance(optimizer, optim.attr("LBFGS")),
                       "[graph_step] LBFGS evaluates the loss several times in a step, which no recording holds; keep "
                       "the loop as it is for it");
  hooks_ = share(hooks_of(optimizer));
  if (!clip.is_none()) clip_ = share(clip);
  read_groups(model);
  if (!is_known(optimizer) || has_sparse_layer(model)) {
    python_step_ = std::make_unique<PythonStep>(optimizer_, hooks_, may_be_apart);
  } else {
    flags_ = read_flags();
    numbers_ = torch_numbers(flags_);
    for (std::size_t group = 0; group <= parameters_.back().group; ++group)
      types_.push_back(make_device_scalar(0, at::kDouble, at::kCPU));
  }
  const auto kind =
      std::make_shared<const OptimizerKind>(python_step_ ? python_step_->kind() : torch_kind(flags_, types_));
  slots_ = kind->slots(OptimizerOptions());
  options_ = OptimizerOptions(kind);
}

// Equal as long as step() does the same, numbers apart. It is asked at every step.
void TorchOptimizer::append_what_decides(std::vector<int64_t>& parts) const {
  static const auto* flags = [] {
    auto* names = new std::vector<py::str>();
    for (const char* flag : kFlags) names->emplace_back(flag);
    return names;
  }();
  for (const py::handle hooks : *hooks_) parts.push_back(PyObject_Size(hooks.ptr()));
  parts.push_back(has_own_step(*optimizer_) ? 1 : 0);
  for (const py::handle group : optimizer_->attr("param_groups")) {
    for (const py::str& flag : *flags) parts.push_back(is_true(group.ptr(), flag) ? 1 : 0);
    for (const py::handle parameter : py::object(group["params"])) {
      parts.push_back(reinterpret_cast<std::intptr_t>(parameter.ptr()));
    }
  }
}

// A subclass, or one with hooks or with another way of working, may do anything: it is recorded as it is.
bool TorchOptimizer::is_known(const py::object& optimizer) {
  const py::module_ optim = py::module_::import("torch.optim");
  bool known = false;
  for (const char* name : {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad"}) {
    known = known || py::type::of(optimizer).is(optim.attr(name));
  }
  if (!known || count_hooks(optimizer) > 0 || has_own_step(optimizer)) return false;
  const py::list groups = optimizer.attr("param_groups");
  for (const py::handle group : groups) {
    for (const char* flag : {"foreach", "capturable", "differentiable"}) known = known && !truthy(group, flag);
    for (const char* flag : kFlags) known = known && truthy(group, flag) == truthy(groups[0], flag);
    for (const std::string& name : torch_numbers({.type = type_name(optimizer)}))
      known = known && to_torch_number(number_in(group, name)).has_value();
    // Half precision rounds a Python number as a tensor of its dtype.
    for (const py::handle parameter : py::object(group["params"])) {
      const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
      known = known && tensor.is_cpu() && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
    }
  }
  return known;
}

void TorchOptimizer::check_unchanged() {
  for (const auto& [name, tensor] : frozen_) {
    require<ConfigError>(!tensor.requires_grad(),
                         "[graph_step] parameter '" + name +
                             "' was frozen when this graph_step was made and requires a gradient now; make a new "
                             "graph_step, which takes over the optimizer's state");
  }
  now_.clear();
  append_what_decides(now_);
  if (now_ == made_with_) return;
  throw ConfigError(
      "[graph_step] the optimizer's parameter groups, flags (amsgrad, maximize, ...) or hooks are others "
      "than when this graph_step was made; make a new one");
}

TorchFlags TorchOptimizer::read_flags() {
  TorchFlags flags{.type = type_name(*optimizer_)};
  const py::list groups = optimizer_->attr("param_groups");
  const py::handle first = groups[0];
  if (flags.type == "Adam" && truthy(first, "decoupled_weight_decay")) flags.type = "AdamW";
  if (flags.type == "AdamW" && !truthy(first, "decoupled_weight_decay")) flags.type = "Adam";
  flags.fused = truthy(first, "fused");
  flags.amsgrad = truthy(first, "amsgrad");
  flags.maximize = truthy(first, "maximize");
  flags.nesterov = truthy(first, "nesterov");
  flags.centered = truthy(first, "centered");
  for (const py::handle group : groups) {
    has_momentum_.push_back(truthy(group, "momentum"));
    flags.has_momentum = flags.has_momentum || has_momentum_.back();
  }
  return flags;
}

void TorchOptimizer::read_groups(const py::object& model) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const py::handle item : model.attr("named_parameters")()) {
    const auto pair = py::cast<py::tuple>(item);
    names[THPVariable_Unpack(pair[1].ptr()).unsafeGetTensorImpl()] = py::cast<std::string>(pair[0]);
  }
  std::size_t index = 0;
  for (const py::handle group : optimizer_->attr("param_groups")) {
    for (const py::handle parameter : py::object(group["params"])) {
      const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
      const auto name = names.find(tensor.unsafeGetTensorImpl());
      require<ConfigError>(
          name != names.end(),
          c10::str("[graph_step] the optimizer's group ", index, " holds a tensor ", tensor.sizes(),
                   " that is no parameter of the model; give the ", "module that holds all of its parameters"));
      if (!tensor.requires_grad()) {
        frozen_.emplace_back(name->second, tensor);
        continue;
      }
      const at::Device expected = parameters_.empty() ? tensor.device() : device();
      require<ConfigError>(tensor.device() == expected,
                           c10::str("[graph_step] parameter '", name->second, "' lies on ", tensor.device(),
                                    ", expected all on one device, ", expected, "; move the model there"));
      parameters_.push_back({.name = name->second, .value = tensor, .group = index});
      held_.insert(tensor.unsafeGetTensorImpl());
      parameters_.back().key = share(py::reinterpret_borrow<py::object>(parameter));
    }
    ++index;
  }
  require<ConfigError>(!parameters_.empty(), "[graph_step] the optimizer holds no trainable parameter");
}

ParamGroups TorchOptimizer::groups() const {
  ParamGroups groups;
  for (const Parameter& parameter : parameters_) {
    if (groups.size() <= parameter.group) groups.resize(parameter.group + 1);
    groups[parameter.group].parameters.emplace_back(parameter.name, parameter.value);
  }
  return groups;
}

std::optional<ClipGrad> TorchOptimizer::clip() const {
  if (!clip_) return std::nullopt;
  return ClipWith{[this](const std::vector<at::Tensor>&) { clip_gradients(); }};
}

void TorchOptimizer::clip_gradients() const {
  const py::gil_scoped_acquire gil;
  // Their order decides how a norm is rounded.
  py::list trained;
  for (const py::handle parameter : model_->attr("parameters")()) {
    if (held_.count(THPVariable_Unpack(parameter.ptr()).unsafeGetTensorImpl()) > 0) trained.append(parameter);
  }
  (*clip_)(trained);
}

void TorchOptimizer::bring_numbers(std::size_t index, const py::handle& group) {
  int64_t types = 0, digit = 1;
  for (std::size_t i = 0; i < numbers_.size(); ++i, digit *= TorchNumber::kTypes) {
    const py::object given = number_in(group, numbers_[i]);
    const std::optional<TorchNumber> now = to_torch_number(given);
    if (!now) {
      throw ConfigError("[graph_step] " + numbers_[i] + " of the optimizer has become " + shown(given) +
                        ", expected a number, or a tensor of one on the CPU that needs no gradient; make a new "
                        "graph_step");
    }
    types += static_cast<int64_t>(now->type()) * digit;
    const bool needs_buffers = numbers_[i] == "momentum" && now->value() != 0 && !has_momentum_[index];
    require<ConfigError>(!needs_buffers, "[graph_step] momentum was 0 when this graph_step was made; make a new one");
    double& last = last_[index][i];
    if (std::bit_cast<int64_t>(now->value()) == std::bit_cast<int64_t>(last)) continue;
    // It throws for a number that the optimizer cannot take: at every step until there is another one.
    step_->hyper_parameters().set(index, numbers_[i], now->value());
    last = now->value();
  }
  write_device_scalar(types_[index], static_cast<double>(types));
}

bool TorchOptimizer::bring_numbers() {
  const py::list groups = optimizer_->attr("param_groups");
  const std::size_t count = parameters_.back().group + 1;
  check_unchanged();
  if (python_step_) return python_step_->begin(step_->mode(), step_->replays());
  if (!state_is_ours()) take_state();
  last_.resize(count);
  for (std::size_t group = 0; group < count; ++group) {
    last_[group].resize(numbers_.size(), std::numeric_limits<double>::quiet_NaN());
    bring_numbers(group, groups[group]);
  }
  return false;
}

void TorchOptimizer::visit_kept(const VisitKept& visit) const {
  for (const SharedObject& kept : {model_, optimizer_, clip_, state_, hooks_}) visit(kept);
  for (const Parameter& parameter : parameters_) {
    visit(parameter.key);
    visit(parameter.state);
    for (const SharedObject& tensor : parameter.objects) visit(tensor);
  }
}

std::string TorchOptimizer::graph_key() const {
  if (!python_step_) return {};
  const py::gil_scoped_acquire gil;
  return python_step_->graph_key();
}

void TorchOptimizer::attach(GraphStep& step) {
  const py::gil_scoped_acquire gil;
  step_ = &step;
  append_what_decides(made_with_);
  optimizer_->attr("_opt_called") = true;  // schedulers warn where step() was never called
  if (python_step_) return;
  const StateDict state = step.state_dict();
  for (const Parameter& parameter : parameters_) {
    auto& tensors = tensors_.emplace_back();
    for (const StateSlot& slot : slots_)
      tensors.push_back(state.tensor("optimizer.state." + parameter.name + "." + slot.name));
  }
  take_state();
}

// torch's name of a slot; empty: torch has no tensor for it.
std::string TorchOptimizer::torch_name(const Parameter& parameter, std::size_t slot) const {
  const std::string& name = slots_[slot].name;
  if (name == "torch_step") return "step";
  return name == "started" || (name == "momentum_buffer" && !has_momentum_[parameter.group]) ? "" : name;
}

// Whether torch's state shows the very tensors that the step works on, and has none where they are not shown yet.
bool TorchOptimizer::state_is_ours() const {
  const py::object states = optimizer_->attr("state");
  if (!state_ || !states.is(*state_)) return false;
  for (const Parameter& parameter : parameters_) {
    PyObject* state = PyDict_GetItem(states.ptr(), parameter.key->ptr());
    if (!parameter.shown) {
      if (state != nullptr && PyObject_Size(state) != 0) return false;
      continue;
    }
    if (state != parameter.state->ptr()) return false;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (!parameter.objects[s]) continue;
      if (PyDict_GetItemString(state, torch_name(parameter, s).c_str()) != parameter.objects[s]->ptr()) return false;
    }
  }
  return true;
}

// Puts the step's tensors into torch's state of the parameter.
void TorchOptimizer::show(Parameter& parameter, std::size_t index, const py::object& state) {
  parameter.objects.assign(slots_.size(), nullptr);
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const std::string name = torch_name(parameter, s);
    if (name.empty()) continue;
    const py::object tensor = py::cast(tensors_[index][s]);
    state[name.c_str()] = tensor;
    parameter.objects[s] = share(tensor);
  }
  parameter.state = share(state);
  parameter.shown = true;
  ++shown_;
}

// Of an optimizer that has stepped before, or into which a state was loaded.
void TorchOptimizer::take_state() {
  const at::NoGradGuard no_grad;
  const py::object states = optimizer_->attr("state");
  std::vector<GivenState> given;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    GivenState& one = given.emplace_back(GivenState{parameters_[p].name, {}, tensors_[p]});
    for (std::size_t s = 0; s < slots_.size(); ++s) one.names.push_back(torch_name(parameters_[p], s));
    if (states.contains(*parameters_[p].key)) read_state(states[*parameters_[p].key], one);
  }
  make_independent(given);
  shown_ = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    bool complete = !slots_.empty();
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (given[p].names[s].empty()) continue;
      const at::Tensor& tensor = given[p].tensors[s];
      complete = complete && tensor.defined();
      tensor.defined() ? tensors_[p][s].copy_(tensor) : tensors_[p][s].fill_(slots_[s].initial);
    }
    if (!slots_.empty() && slots_[0].name == "started") tensors_[p][0].fill_(complete ? 1 : 0);
    parameter.shown = false;
    if (complete) show(parameter, p, states[*parameter.key]);
  }
  state_ = share(states);
}

void TorchOptimizer::end_step() {
  if (python_step_) python_step_->call_if_apart();
  if (slots_.empty() || shown_ == parameters_.size()) return;
  const py::object states = optimizer_->attr("state");
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.shown || tensors_[p][0].item<float>() == 0) continue;
    show(parameter, p, states[*parameter.key]);
  }
}

}  // namespace duet::python
