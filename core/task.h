#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include "../base/batch.h"
#include "../base/error.h"
#include "../base/state_dict.h"
#include "../optim/groups/param_group.h"

namespace duet {

// What one forward pass of a micro-batch gives.
struct StepOutput {
  at::Tensor loss;         // 0-dim, a mean over Task::weight(batch) items, attached to the autograd graph
  NamedTensors log;        // further 0-dim values to log; kept on the device until a hook reads them
  NamedTensors outputs{};  // what the model gave, for hooks that ask for it and for the metrics of an evaluation
};

// What the user writes: a model and what it does with a batch. The trainers ask for nothing else, and
// call training_step alike in both modes; in graph mode its C++ code runs when a step is recorded and not
// on every step, so it must not depend on host values that change (see graph_key).
//
// Of ModelInfo it must define named_parameters(); modules() and layer_depth() serve the rules for parameter groups.
class Task : public ModelInfo {
 public:
  virtual NamedTensors named_buffers() const = 0;  // with dotted names, in a fixed order; shared, not copied
  // Of parameters and buffers with several names (tied weights): every further name, and the one given above, so that
  // files that know a tensor by any of its names fit.
  virtual std::map<std::string, std::string> tied_names() const { return {}; }
  virtual void train(bool on) = 0;
  // The training flags of the model and its submodules, and putting them back: what evaluates between steps leaves
  // them as they were. Unless overridden the model counts as training.
  virtual std::vector<bool> training_flags() const { return {}; }
  virtual void set_training_flags(const std::vector<bool>& /*flags*/) { train(true); }
  // From now on train(true) leaves these modules, by their full names, and all below them in evaluation mode. Throws
  // ConfigError unless overridden.
  virtual void hold_in_evaluation(const std::vector<std::string>& modules);
  virtual void to(at::Device device) = 0;

  // Forward and loss of one micro-batch. Must not call backward.
  virtual StepOutput training_step(const Batch& batch) = 0;

  // The count that the mean in the loss is taken over: samples by default; tokens, pixels, ... if the
  // task averages over these. It makes gradient accumulation over uneven batches exact. A micro-batch
  // of weight 0 is left out.
  virtual double weight(const Batch& batch) const { return static_cast<double>(batch.size()); }

  // What evaluation needs of one batch: "loss" (0-dim) and whatever the metrics ask for, usually
  // "prediction". By default what training_step gives.
  virtual NamedTensors validation_step(const Batch& batch);
  // Model outputs for one batch, by name. Throws ConfigError unless the task defines it.
  virtual NamedTensors predict(const Batch& batch);

  // The ops that training mode turns on and evaluation mode off, for people to read; empty where nobody knows.
  virtual std::vector<std::string> training_ops() const { return {}; }

  // Writes the file that the model came from with these weights in it, as "<stem>.pt2" or whatever its kind is called,
  // and returns that path; empty for a model that came from no such file. Throws what writing throws.
  virtual std::string write_model(const std::string& /*stem*/, const StateDict& /*weights*/) const { return {}; }

  // Names every host value that training_step depends on and that may change between steps. A step is
  // captured once per key, so that a changed value is never replayed from an older capture.
  virtual std::string graph_key() const { return {}; }
  // Appends what else of the model decides what a step does: which submodules it has, and their training flags. Called
  // before each step in graph mode.
  virtual void append_key(std::vector<int64_t>& /*key*/) const {}
  // Buffers that weights from elsewhere need not have: of PyTorch those with persistent=False.
  virtual std::vector<std::string> unsaved_buffers() const { return {}; }
};

// Tied weights are one tensor with several names, and a module lists it under each of them. A task gives it once, under
// the first, as named_parameters(remove_duplicate=True) does in Python.

// The items without those whose tensor has come before under another name.
NamedTensors deduplicated(NamedTensors items);

// Every name that deduplicated() leaves out of either, and the one under which it gives that tensor.
std::map<std::string, std::string> aliases_of(const NamedTensors& parameters, const NamedTensors& buffers);

// How many elements of `target` the mean in at::cross_entropy_loss is taken over: class indices but for `ignore_index`,
// and all elements of anything else. Waits for the device where `target` is not on the host.
int64_t counted_targets(const at::Tensor& target, int64_t ignore_index = -100);

// The items of a module's named_parameters() or named_buffers(), tied ones under each of their names.
template <class Dict>
NamedTensors all_items_of(const Dict& dict) {
  NamedTensors items;
  for (const auto& item : dict) items.emplace_back(item.key(), item.value());
  return items;
}

// The same, every tensor once.
template <class Dict>
NamedTensors items_of(const Dict& dict) {
  return deduplicated(all_items_of(dict));
}

// A Task over a torch::nn::Module of the user's own type. Written as a template so that this header needs
// no LibTorch module header; whoever has a module has included it.
template <class Module>
class ModuleTask : public Task {
 public:
  // The model's outputs for a batch; null: the loss calls the module itself.
  using ForwardFn = std::function<at::Tensor(Module&, const Batch&)>;
  // `prediction` is what ForwardFn gave, undefined without one.
  using LossFn = std::function<StepOutput(Module&, const at::Tensor& prediction, const Batch&)>;
  using WeightFn = std::function<double(const Batch&)>;
  using GraphKeyFn = std::function<std::string()>;

  ModuleTask(std::shared_ptr<Module> module, ForwardFn forward, LossFn loss, WeightFn weight = nullptr)
      : module_(std::move(module)), forward_(std::move(forward)), loss_(std::move(loss)), weight_(std::move(weight)) {
    require<ConfigError>(module_ != nullptr, "[make_task] the module is null; make one, as std::make_shared<Net>()");
  }

  void set(WeightFn weight) { weight_ = std::move(weight); }
  void set(GraphKeyFn graph_key) { graph_key_ = std::move(graph_key); }
  void set(std::nullptr_t) {}

  Module& module() { return *module_; }

  NamedTensors named_parameters() const override { return items_of(module_->named_parameters()); }
  NamedTensors named_buffers() const override { return items_of(module_->named_buffers()); }
  std::map<std::string, std::string> tied_names() const override {
    return aliases_of(all_items_of(module_->named_parameters()), all_items_of(module_->named_buffers()));
  }
  void train(bool on) override {
    module_->train(on);
    for (const std::string& name : held_) module_->named_modules()[name]->train(false);
  }
  void hold_in_evaluation(const std::vector<std::string>& modules) override {
    held_.insert(held_.end(), modules.begin(), modules.end());
  }
  std::vector<bool> training_flags() const override {
    std::vector<bool> flags{module_->is_training()};
    for (const auto& submodule : find_submodules()) flags.push_back(submodule->is_training());
    return flags;
  }
  void set_training_flags(const std::vector<bool>& flags) override {
    module_->train(flags.front());  // sets those of all below; those of a submodule are set after its parent's
    std::size_t next = 1;
    for (const auto& known : submodules()) {
      if (next == flags.size()) return;  // flags of before it was there
      const auto submodule = known.lock();
      const bool flag = flags[next++];
      if (submodule->is_training() != flag) submodule->train(flag);
    }
  }
  void to(at::Device device) override { module_->to(device); }

  std::vector<ModuleInfo> modules() const override { return modules_of(*module_); }
  void append_key(std::vector<int64_t>& key) const override {
    int64_t flags = module_->is_training() ? 1 : 0;
    for (const auto& submodule : submodules()) {
      if (flags >= int64_t{1} << 60) key.push_back(std::exchange(flags, 0));
      flags = 2 * flags + (submodule.lock()->is_training() ? 1 : 0);
    }
    key.push_back(flags);
    key.push_back(generation_);
  }

  double weight(const Batch& batch) const override { return weight_ ? weight_(batch) : Task::weight(batch); }
  std::string graph_key() const override { return graph_key_ ? graph_key_() : std::string(); }

  StepOutput training_step(const Batch& batch) override {
    const at::Tensor prediction = forward(batch);
    StepOutput output = loss_(*module_, prediction, batch);
    if (prediction.defined()) output.outputs.emplace_back("prediction", prediction);
    return output;
  }

  NamedTensors predict(const Batch& batch) override {
    if (!forward_) return Task::predict(batch);
    return {{"prediction", forward(batch)}};
  }

 private:
  at::Tensor forward(const Batch& batch) { return forward_ ? forward_(*module_, batch) : at::Tensor(); }

  using Submodules = decltype(std::declval<const Module&>().modules(false));
  using Known = std::vector<typename Submodules::value_type::weak_type>;
  Submodules find_submodules() const {
    const Submodules found = module_->modules(/*include_self=*/false);
    const auto is = [](const auto& known, const auto& module) { return known.lock() == module; };
    if (!std::ranges::equal(submodules_, found, is)) ++generation_;
    submodules_.assign(found.begin(), found.end());
    return found;
  }
  // Those that were found last, unless one of them is gone: another may have taken its place.
  const Known& submodules() const {
    const bool any_is_gone = std::ranges::any_of(submodules_, [](const auto& known) { return known.expired(); });
    if (any_is_gone || submodules_.empty()) find_submodules();
    return submodules_;
  }

  std::shared_ptr<Module> module_;
  mutable Known submodules_;        // of module_
  mutable int64_t generation_ = 0;  // of them
  std::vector<std::string> held_;   // in evaluation mode
  ForwardFn forward_;
  LossFn loss_;
  WeightFn weight_;
  GraphKeyFn graph_key_;
};

// A module as make_task takes it: a shared_ptr, or a ModuleHolder such as torch::nn::Linear.
template <class Module>
std::shared_ptr<Module> shared_module(std::shared_ptr<Module> module) {
  return module;
}
template <class Holder, class Module = typename Holder::ContainedType>
std::shared_ptr<Module> shared_module(const Holder& holder) {
  return holder.is_empty() ? nullptr : holder.ptr();
}

// A loss as a StepOutput, whichever of the two it is.
inline StepOutput to_step_output(StepOutput output) { return output; }
inline StepOutput to_step_output(at::Tensor loss) { return {std::move(loss), {}}; }

// The module behind what make_task is given.
template <class Holder>
using ModuleIn = typename decltype(shared_module(std::declval<const Holder&>()))::element_type;

// What make_task takes, by name, for the compiler's errors.

template <class Result>
concept TensorOrStepOutput = std::is_convertible_v<Result, at::Tensor> || std::is_convertible_v<Result, StepOutput>;

template <class Function, class Module>
concept LossOfModule = requires(Function& loss, Module& module, const Batch& batch) {
  { loss(module, batch) } -> TensorOrStepOutput;
};

template <class Function, class Module>
concept ForwardOfModule = std::is_invocable_r_v<at::Tensor, Function&, Module&, const Batch&>;

template <class Function>
concept LossOfPrediction = requires(Function& loss, const at::Tensor& prediction, const Batch& batch) {
  { loss(prediction, batch) } -> TensorOrStepOutput;
};

template <class Function>
concept WeightOrGraphKey = std::is_convertible_v<Function, std::function<double(const Batch&)>> ||
                           std::is_convertible_v<Function, std::function<std::string()>>;

// A Task from a module and its loss: loss(module&, batch) -> 0-dim tensor, or StepOutput with further values to log.
// `further`: weight(batch), the count that the loss is a mean over, without it the samples; and graph_key(), which is
// Task::graph_key().
template <class Holder, class Loss, class... Further, class Module = ModuleIn<Holder>>
std::unique_ptr<ModuleTask<Module>> make_task(const Holder& module, Loss loss, Further... further)
  requires LossOfModule<Loss, Module> && (WeightOrGraphKey<Further> && ...)
{
  auto of_module = [loss = std::move(loss)](Module& own, const at::Tensor&, const Batch& batch) mutable {
    return to_step_output(loss(own, batch));
  };
  auto task = std::make_unique<ModuleTask<Module>>(shared_module(module), nullptr, std::move(of_module));
  (task->set(std::move(further)), ...);
  return task;
}

// The same with a forward(module&, batch) -> prediction of its own, from which loss(prediction, batch) follows:
// evaluation then has a "prediction", and predict() works.
template <class Holder, class Forward, class Loss, class... Further, class Module = ModuleIn<Holder>>
std::unique_ptr<ModuleTask<Module>> make_task(const Holder& module, Forward forward, Loss loss, Further... further)
  requires ForwardOfModule<Forward, Module> && LossOfPrediction<Loss> && (WeightOrGraphKey<Further> && ...)
{
  auto of_prediction = [loss = std::move(loss)](Module&, const at::Tensor& prediction, const Batch& batch) mutable {
    return to_step_output(loss(prediction, batch));
  };
  auto task = std::make_unique<ModuleTask<Module>>(shared_module(module), std::move(forward), std::move(of_prediction));
  (task->set(std::move(further)), ...);
  return task;
}

// How weights fit a model: by name, shape and type.
struct WeightsReport {
  struct Difference {
    std::string name;
    std::string found, expected;  // "Float[3, 5]"
  };

  int64_t loaded = 0;                   // tensors of the model that have a value there
  int64_t expected = 0;                 // that the model has
  std::vector<std::string> missing;     // of the model, not there; BatchNorm's num_batches_tracked is not missed
  std::vector<std::string> unexpected;  // there, not of the model
  std::vector<Difference> mismatched;   // another shape, or integers for floating point numbers: not loaded
  std::vector<std::string> untied;      // further names of tied tensors, with another value there: not loaded
  std::vector<Difference> converted;    // loaded from another floating-point type

  // Every tensor has its counterpart, of the same shape and type.
  bool exact() const {
    return missing.empty() && unexpected.empty() && mismatched.empty() && untied.empty() && converted.empty();
  }
  // "10 of 12 tensors" and a line per kind of difference with up to `max_names` names each.
  std::string text(size_t max_names = 8) const;
};

// Parameters, then buffers: by name in a list, and detached, as the model's part of a checkpoint.
NamedTensors named_tensors(const Task& task);
StateDict weights_of(const Task& task);

// Compares alone. With `strict` throws CheckpointError with the report if that is not exact.
WeightsReport match_weights(const Task& task, const StateDict& weights, bool strict = false);

// Copies into the task's parameters and buffers whatever fits. Throws CheckpointError with the report if nothing does,
// or as match_weights() does; then nothing has changed.
WeightsReport load_matching_weights(Task& task, const StateDict& weights, bool strict = false);

}  // namespace duet
