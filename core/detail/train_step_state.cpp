#include <cstdint>
#include <typeinfo>
#include <torch/csrc/autograd/variable.h>
#include "base/log.h"
#include "core/detail/distributed_step.h"
#include "core/detail/train_step.h"
#include "optim/detail/amp.h"
#include "optim/optimizers/detail/optimizer.h"

namespace duet {

// What a step keeps from one to the next: its hyper-parameters, and the state of its optimizer.

std::size_t TrainStep::group_count() const { return optimizer_->group_count(); }
std::vector<std::string> TrainStep::names() const { return optimizer_->names(); }
bool TrainStep::has(std::size_t group, const std::string& name) const { return optimizer_->has(group, name); }
double TrainStep::get(std::size_t group, const std::string& name) const { return optimizer_->get(group, name); }
int64_t TrainStep::applied() const { return optimizer_->applied(); }

void TrainStep::set(std::size_t group, const std::string& name, double value) {
  optimizer_->set(group, name, value);
  if (distributed_) distributed_->settings().note(group, name, value);
}

void TrainStep::set_schedule(const std::string& name, Curve curve) {
  optimizer_->set_schedule(name, curve);
  if (distributed_) distributed_->settings().note(name, curve, *this);
}

void TrainStep::clear_schedule(const std::string& name) {
  optimizer_->clear_schedule(name);
  if (distributed_) distributed_->settings().forget(name);
}

NamedTensors TrainStep::mutable_state() const {
  NamedTensors tensors = task_->named_buffers();
  for (auto& [name, tensor] : optimizer_->mutable_state()) tensors.emplace_back("optimizer." + name, tensor);
  if (scaler_) {
    for (auto& [name, tensor] : scaler_->mutable_state()) tensors.emplace_back("scaler." + name, tensor);
  }
  if (options_.non_finite == NonFinite::kRaise) tensors.emplace_back("failed", failed_);
  return tensors;
}

StateDict TrainStep::state_dict() const {
  StateDict state = optimizer_->state_dict();
  if (scaler_) state.put("scaler", scaler_->state_dict());
  return state;
}

void TrainStep::load_state_dict(const StateDict& state) {
  const StateDict scaler = state.part("scaler");
  const bool saved = scaler.has("scale");
  if (scaler_ && saved)
    GradScaler(*options_.loss_scale, device_).load_state_dict(scaler);  // throws before anything changes
  optimizer_->load_state_dict(state.without("scaler"));
  if (scaler_ && saved) scaler_->load_state_dict(scaler);
  failed_.zero_();  // of a step that is no part of this state
  unread_steps_ = 0;
  if (saved != (scaler_ != nullptr)) {
    log_warning(saved ? "[TrainStep] the state has a loss scale, this run scales no loss; it is left out"
                      : "[TrainStep] the state has no loss scale, this run starts with the configured one");
  }
}

// In memory that a captured step leaves to the ops that come after it.
void TrainStep::keep_verdict(GradientCheck& verdict) {
  for (const auto part : {&GradientCheck::grad_scale, &GradientCheck::found_inf}) {
    at::Tensor& kept = kept_verdict_.*part;
    if ((verdict.*part).defined())
      verdict.*part = kept.copy_(verdict.*part);
    else
      kept.reset();
  }
}

int64_t TrainStep::plan_version() const { return optimizer_->plan_version(); }

namespace {

// Another number where register_hook has put other functions on the tensor's gradient. What they have captured counts
// no more than what other host code has.
int64_t key_of_hooks(const at::Tensor& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  if (meta == nullptr || meta->cpp_hooks_list_ == nullptr) return 0;
  uint64_t key = 0;
  for (const auto& hook : *meta->cpp_hooks_list_) {
    if (hook) key = key * 31 + hook.target_type().hash_code();  // a removed one leaves an empty place
  }
  return static_cast<int64_t>(key);
}

}  // namespace

void TrainStep::append_key(std::vector<int64_t>& key) const {
  optimizer_->append_key(key);
  for (const auto& parameter : parameters_) {
    key.push_back(parameter.second.requires_grad() ? 1 : 0);
    key.push_back(key_of_hooks(parameter.second));
  }
  task_->append_key(key);
  const std::string task_key = task_->graph_key();
  if (!task_key.empty()) key.push_back(static_cast<int64_t>(std::hash<std::string>{}(task_key)));
}

}  // namespace duet
