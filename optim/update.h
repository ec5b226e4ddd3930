#pragma once

#include <duet/core/update_rule.h>
#include <duet/optim/optimizer.h>

#include <memory>
#include <optional>

namespace duet {

struct ClipGradOptions {
  double max_norm = 1.0;   // > 0
  double norm_type = 2.0;  // >= 1, or infinity
};

struct UpdateOptions {
  OptimizerOptions optimizer;
  std::optional<ClipGradOptions> clip_grad;   // none: no clipping
  std::optional<at::ScalarType> amp;          // bfloat16: autocast; none: full precision

  // Throws ConfigError naming the field and its range.
  void validate() const;
};

// The one update of both modes: forward and backward of each micro-batch, global norm, optimizer.
//
// The gradient of a window is the weighted mean over its micro-batches, equal to that of one big batch. The weight
// scales the scalar loss; a window of one has no factor at all.
class Update : public UpdateRule {
 public:
  // Moves the task to `device`. Throws ConfigError if the task has no trainable parameter.
  Update(std::unique_ptr<Task> task, at::Device device, const UpdateOptions& options);

  void begin(const Window& window) override;
  UpdateOutput run(const Window& window, UpdatePoints& points) override;
  void end() override;
  void append_key(std::vector<int64_t>& key) const override;

  Task& task() override { return *task_; }
  const NamedTensors& parameters() const override { return parameters_; }
  NamedTensors mutable_state() const override;

  std::size_t group_count() const override { return optimizer_->group_count(); }
  std::vector<std::string> names() const override { return optimizer_->names(); }
  double get(std::size_t group, const std::string& name) const override { return optimizer_->get(group, name); }
  void set(std::size_t group, const std::string& name, double value) override { optimizer_->set(group, name, value); }

  StateDict state_dict() const override { return optimizer_->state_dict(); }
  void load_state_dict(const StateDict& state) override { optimizer_->load_state_dict(state); }

 private:
  void forward_backward(const Window& window, UpdateOutput& output);
  at::Tensor grad_norm() const;

  std::unique_ptr<Task> task_;
  at::Device device_;
  UpdateOptions options_;
  NamedTensors parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<at::Tensor> factors_;  // weight / total of each micro-batch, 0-dim float32
};

}  // namespace duet
