#include <duet/optim/update.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <duet/optim/autocast.h>
#include <duet/optim/device_scalar.h>

#include <cmath>
#include <functional>

namespace duet {

void UpdateOptions::validate() const {
  optimizer.validate();
  if (clip_grad && !(clip_grad->max_norm > 0 && std::isfinite(clip_grad->max_norm))) {
    throw ConfigError(c10::str("[ClipGradOptions] max_norm is ", clip_grad->max_norm, ", expected a number > 0"));
  }
  if (clip_grad && !(clip_grad->norm_type >= 1)) {
    throw ConfigError(c10::str("[ClipGradOptions] norm_type is ", clip_grad->norm_type, ", expected a number >= 1 or inf"));
  }
  if (amp && *amp != at::kBFloat16) {
    throw ConfigError(c10::str("[UpdateOptions] amp is ", *amp, ", expected BFloat16 or none"));
  }
}

namespace {

NamedTensors trainable(const NamedTensors& parameters) {
  NamedTensors result;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad()) result.emplace_back(name, tensor);
  }
  return result;
}

}  // namespace

Update::Update(std::unique_ptr<Task> task, at::Device device, const UpdateOptions& options)
    : task_(std::move(task)), device_(device), options_(options) {
  require<ConfigError>(task_ != nullptr, "[Update] the task is null; make one with make_task(module, loss_fn)");
  options_.validate();
  task_->to(device_);
  parameters_ = trainable(task_->named_parameters());
  require<ConfigError>(!parameters_.empty(),
                       "[Update] the task has no parameter that requires a gradient; register the module's "
                       "parameters, or unfreeze some with requires_grad_(true)");
  optimizer_ = Optimizer::create(options_.optimizer, parameters_);
}

void Update::begin(const Window& window) {
  for (auto& parameter : parameters_) parameter.second.mutable_grad().reset();
  if (window.batches.size() < 2) return;
  while (factors_.size() < window.batches.size()) factors_.push_back(make_device_scalar(0, at::kFloat, device_));
  for (std::size_t i = 0; i < window.batches.size(); ++i) {
    write_device_scalar(factors_[i], window.weights[i] / window.total);
  }
}

namespace {

void check_loss(const at::Tensor& loss) {
  require<ConfigError>(loss.defined(), "[Task] training_step returned no loss; set StepOutput::loss");
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    throw ConfigError(c10::str("[Task] training_step returned a loss of ", loss.scalar_type(), loss.sizes(),
                               ", expected one floating-point number; take its mean"));
  }
  require<ConfigError>(loss.requires_grad(),
                       "[Task] training_step returned a loss that no parameter took part in; compute it from the "
                       "module's outputs, without detach() or NoGradGuard");
}

// value * factor, summed over the micro-batches of a window; a window of one has no factor.
void accumulate(at::Tensor& sum, const at::Tensor& value, const at::Tensor& factor) {
  const at::Tensor part = factor.defined() ? value.detach() * factor : value.detach();
  sum = sum.defined() ? sum + part : part;
}

void check_same_names(const NamedTensors& first, const NamedTensors& now, std::size_t index) {
  bool same = first.size() == now.size();
  for (std::size_t k = 0; same && index > 0 && k < first.size(); ++k) same = first[k].first == now[k].first;
  require<ConfigError>(same, "[Task] training_step logged other names for micro-batch " + std::to_string(index) +
                                 " than for the first of its window; log the same ones every time");
}

}  // namespace

void Update::forward_backward(const Window& window, UpdateOutput& output) {
  const bool weighted = window.batches.size() > 1;
  for (std::size_t i = 0; i < window.batches.size(); ++i) {
    const at::Tensor factor = weighted ? factors_[i] : at::Tensor();
    StepOutput step;
    {
      const AutocastGuard autocast(device_, options_.amp);
      step = task_->training_step(window.batches[i]);
    }
    check_loss(step.loss);
    if (step.loss.dim() > 0) step.loss = step.loss.reshape({});
    (weighted ? step.loss * factor : step.loss).backward();

    const at::NoGradGuard no_grad;
    accumulate(output.loss, step.loss, factor);
    if (i == 0) output.log.resize(step.log.size());
    check_same_names(output.log, step.log, i);
    for (std::size_t k = 0; k < step.log.size(); ++k) {
      output.log[k].first = step.log[k].first;
      // A logged weight must keep the value it has now, not the one after the update.
      accumulate(output.log[k].second, weighted ? step.log[k].second : step.log[k].second.clone(), factor);
    }
  }
}

// As torch.nn.utils.get_total_norm: the norm of the tensors' norms, without a host read.
at::Tensor Update::grad_norm() const {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) {
    if (parameter.second.grad().defined()) gradients.push_back(parameter.second.grad());
  }
  const double p = options_.clip_grad->norm_type;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, p)), p);
}

UpdateOutput Update::run(const Window& window, UpdatePoints& points) {
  UpdateOutput output;
  forward_backward(window, output);

  const at::NoGradGuard no_grad;
  UpdateContext context{parameters_, output};
  points.after_backward(context);
  at::Tensor grad_scale;
  if (options_.clip_grad) {
    output.grad_norm = grad_norm();
    // The kernel divides by this: 1 / min(1, max_norm / (norm + 1e-6)), torch.nn.utils.clip_grad_norm_'s factor.
    grad_scale = ((output.grad_norm + 1e-6) * (1 / options_.clip_grad->max_norm)).clamp_min(1.0).to(at::kFloat);
  }
  points.before_optimizer_step(context);
  optimizer_->step(grad_scale);
  points.in_update(context);
  return output;
}

void Update::end() { optimizer_->end(); }

void Update::append_key(std::vector<int64_t>& key) const {
  optimizer_->append_key(key);
  for (const auto& parameter : parameters_) key.push_back(parameter.second.requires_grad() ? 1 : 0);
  const std::string task_key = task_->graph_key();
  if (!task_key.empty()) key.push_back(static_cast<int64_t>(std::hash<std::string>{}(task_key)));
}

NamedTensors Update::mutable_state() const {
  NamedTensors tensors = task_->named_buffers();
  for (auto& [name, tensor] : optimizer_->mutable_state()) tensors.emplace_back("optimizer." + name, tensor);
  return tensors;
}

}  // namespace duet
