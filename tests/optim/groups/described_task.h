#pragma once

#include <optional>
#include <utility>
#include <ATen/ops/zeros.h>
#include "core/task.h"

namespace duet::testing {

// A task that is only its description: what it says of its parameters, layers and depths.
class DescribedTask : public Task {
 public:
  explicit DescribedTask(std::vector<ModuleInfo> modules = {}) : modules_(std::move(modules)) {}

  at::Tensor add(const std::string& name, std::vector<int64_t> shape) {
    at::Tensor tensor = at::zeros(shape).requires_grad_(true);
    parameters_.emplace_back(name, tensor);
    return tensor;
  }
  void add(const std::string& name, const at::Tensor& tensor) { parameters_.emplace_back(name, tensor); }
  void set_depth(const std::string& name, LayerDepth depth) { depths_.emplace_back(name, depth); }

  NamedTensors named_parameters() const override { return parameters_; }
  NamedTensors named_buffers() const override { return {}; }
  void train(bool) override {}
  void to(at::Device) override {}
  StepOutput training_step(const Batch&) override { return {}; }
  std::vector<ModuleInfo> modules() const override { return modules_; }
  std::optional<LayerDepth> layer_depth(const std::string& name) const override {
    for (const auto& entry : depths_) {
      if (entry.first == name) return entry.second;
    }
    return std::nullopt;
  }

 private:
  std::vector<ModuleInfo> modules_;
  NamedTensors parameters_;
  std::vector<std::pair<std::string, LayerDepth>> depths_;
};

}  // namespace duet::testing
