#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include "task.h"
#include "tied_names.h"

namespace duet {

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
  return each_once(all_items_of(dict));
}

// A Task over a torch::nn::Module of the user's own type. Written as a template so that this header needs
// no LibTorch module header; whoever has a module has included it.
template <class Module>
class ModuleTask : public Task, public TiedNames {
 public:
  // The model's outputs for a batch; null: the loss calls the module itself.
  using ForwardFn = std::function<at::Tensor(Module&, const Batch&)>;
  // `prediction` is what ForwardFn gave, undefined without one.
  using LossFn = std::function<StepOutput(Module&, const at::Tensor& prediction, const Batch&)>;
  using WeightFn = std::function<double(const Batch&)>;

  ModuleTask(std::shared_ptr<Module> module, ForwardFn forward, LossFn loss, WeightFn weight = nullptr)
      : module_(std::move(module)), forward_(std::move(forward)), loss_(std::move(loss)), weight_(std::move(weight)) {}

  Module& module() { return *module_; }

  NamedTensors named_parameters() const override { return items_of(module_->named_parameters()); }
  NamedTensors named_buffers() const override { return items_of(module_->named_buffers()); }
  std::map<std::string, std::string> tied_names() const override {
    std::map<std::string, std::string> names = further_names(all_items_of(module_->named_parameters()));
    names.merge(further_names(all_items_of(module_->named_buffers())));
    return names;
  }
  void train(bool on) override { module_->train(on); }
  void to(at::Device device) override { module_->to(device); }

  std::vector<ModuleInfo> modules() const override { return modules_of(*module_); }

  double weight(const Batch& batch) const override { return weight_ ? weight_(batch) : Task::weight(batch); }

  StepOutput training_step(const Batch& batch) override { return loss_(*module_, forward(batch), batch); }

  NamedTensors validation_step(const Batch& batch) override {
    const at::Tensor prediction = forward(batch);
    StepOutput output = loss_(*module_, prediction, batch);
    NamedTensors outputs = std::move(output.log);
    outputs.emplace_back("loss", output.loss);
    if (prediction.defined()) outputs.emplace_back("prediction", prediction);
    return outputs;
  }

  NamedTensors predict(const Batch& batch) override {
    if (!forward_) return Task::predict(batch);
    return {{"prediction", forward(batch)}};
  }

 private:
  at::Tensor forward(const Batch& batch) { return forward_ ? forward_(*module_, batch) : at::Tensor(); }

  std::shared_ptr<Module> module_;
  ForwardFn forward_;
  LossFn loss_;
  WeightFn weight_;
};

// A module as make_task takes it: a shared_ptr, or a ModuleHolder such as torch::nn::Linear.
template <class Module>
std::shared_ptr<Module> shared_module(std::shared_ptr<Module> module) {
  return module;
}
template <class Holder, class Module = typename Holder::ContainedType>
std::shared_ptr<Module> shared_module(const Holder& holder) {
  return holder.ptr();
}

// A loss as a StepOutput, whichever of the two it is.
inline StepOutput to_step_output(StepOutput output) { return output; }
inline StepOutput to_step_output(at::Tensor loss) { return {std::move(loss), {}}; }

// A Task from a module and its loss: loss(module&, batch) -> 0-dim tensor, or StepOutput with further values to log.
// `weight(batch)` is the count that the loss is a mean over; without it the samples.
template <class Holder, class Loss,
          class Module = typename decltype(shared_module(std::declval<Holder>()))::element_type>
std::unique_ptr<ModuleTask<Module>> make_task(const Holder& module, Loss loss,
                                              typename ModuleTask<Module>::WeightFn weight = nullptr)
  requires std::is_invocable_v<Loss, Module&, const Batch&>
{
  const auto of_module = [loss = std::move(loss)](Module& own, const at::Tensor&, const Batch& batch) {
    return to_step_output(loss(own, batch));
  };
  return std::make_unique<ModuleTask<Module>>(shared_module(module), nullptr, of_module, std::move(weight));
}

// The same with a forward(module&, batch) -> prediction of its own, from which loss(prediction, batch) follows:
// evaluation then has a "prediction", and predict() works.
template <class Holder, class Forward, class Loss,
          class Module = typename decltype(shared_module(std::declval<Holder>()))::element_type>
std::unique_ptr<ModuleTask<Module>> make_task(const Holder& module, Forward forward, Loss loss,
                                              typename ModuleTask<Module>::WeightFn weight = nullptr)
  requires std::is_invocable_v<Loss, const at::Tensor&, const Batch&>
{
  const auto of_prediction = [loss = std::move(loss)](Module&, const at::Tensor& prediction, const Batch& batch) {
    return to_step_output(loss(prediction, batch));
  };
  return std::make_unique<ModuleTask<Module>>(shared_module(module), std::move(forward), of_prediction,
                                              std::move(weight));
}

}  // namespace duet
