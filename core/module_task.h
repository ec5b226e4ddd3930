#pragma once

#include "detail/tied_names.h"
#include "task.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

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
  using LossFn = std::function<StepOutput(Module&, const Batch&)>;
  using PredictFn = std::function<at::Tensor(Module&, const Batch&)>;
  using WeightFn = std::function<double(const Batch&)>;

  ModuleTask(std::shared_ptr<Module> module, LossFn loss, PredictFn predict = nullptr, WeightFn weight = nullptr)
      : module_(std::move(module)), loss_(std::move(loss)), predict_(std::move(predict)), weight_(std::move(weight)) {}

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

  StepOutput training_step(const Batch& batch) override { return loss_(*module_, batch); }

  double weight(const Batch& batch) const override { return weight_ ? weight_(batch) : Task::weight(batch); }

  NamedTensors validation_step(const Batch& batch) override {
    NamedTensors outputs = Task::validation_step(batch);
    if (predict_) outputs.emplace_back("prediction", predict_(*module_, batch));
    return outputs;
  }

  NamedTensors predict(const Batch& batch) override {
    if (!predict_) return Task::predict(batch);
    return {{"prediction", predict_(*module_, batch)}};
  }

 private:
  std::shared_ptr<Module> module_;
  LossFn loss_;
  PredictFn predict_;
  WeightFn weight_;
};

// A Task from a module (shared_ptr, or a ModuleHolder such as torch::nn::Linear), a loss function
// (module&, batch) -> 0-dim tensor or StepOutput, and optionally (module&, batch) -> prediction and
// (batch) -> count that the loss is a mean over (samples without it).
template <class Module, class Loss>
std::unique_ptr<ModuleTask<Module>> make_task(std::shared_ptr<Module> module, Loss loss,
                                              typename ModuleTask<Module>::PredictFn predict = nullptr,
                                              typename ModuleTask<Module>::WeightFn weight = nullptr) {
  typename ModuleTask<Module>::LossFn step = [loss = std::move(loss)](Module& model, const Batch& batch) {
    if constexpr (std::is_same_v<decltype(loss(model, batch)), StepOutput>) {
      return loss(model, batch);
    } else {
      return StepOutput{loss(model, batch), {}};
    }
  };
  return std::make_unique<ModuleTask<Module>>(std::move(module), std::move(step), std::move(predict),
                                              std::move(weight));
}

template <class Holder, class Loss, class Module = typename Holder::ContainedType>
std::unique_ptr<ModuleTask<Module>> make_task(const Holder& holder, Loss loss,
                                              typename ModuleTask<Module>::PredictFn predict = nullptr,
                                              typename ModuleTask<Module>::WeightFn weight = nullptr) {
  return make_task<Module>(holder.ptr(), std::move(loss), std::move(predict), std::move(weight));
}

}  // namespace duet
