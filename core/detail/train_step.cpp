#include "core/detail/train_step.h"
#include <optional>
#include <set>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/op_tap.h"
#include "base/error.h"
#include "core/detail/distributed_step.h"
#include "core/detail/non_finite_tracer.h"
#include "distributed/detail/broadcast.h"
#include "distributed/detail/sync_batch_norm.h"
#include "optim/detail/amp.h"
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/optimizer_kind.h"

namespace duet {

namespace {

void check_closure_options(const TrainerOptions& options) {
  const auto refuse = [&options](bool given, const char* what) {
    if (!given) return;
    throw ConfigError(c10::str("[TrainerOptions] found ", what, " beside ", options.optimizer.type(),
                               ", which evaluates the loss as ",
                               "often as it needs and takes the gradients as they are; leave it out"));
  };
  refuse(options.clip_grad.has_value(), "clip_grad");
  refuse(options.log_grad_norm, "log_grad_norm");
  refuse(options.loss_scale.has_value(), "a loss scale (float16)");
  refuse(options.non_finite != NonFinite::kApply, "non_finite");
}

}  // namespace

TrainStep::TrainStep(std::unique_ptr<Task> task, at::Device device, const TrainerOptions& options)
    : task_(std::move(task)), device_(device), options_(options) {
  require<ConfigError>(task_ != nullptr, "[TrainStep] the task is null; make one with make_task(module, loss_fn)");
  options_.validate();
  check_names(*task_);
  task_->to(device_);
  freeze(*task_, options_.freeze);
  for (auto& parameter : task_->named_parameters()) {
    (parameter.second.requires_grad() ? parameters_ : frozen_).push_back(std::move(parameter));
  }
  require<ConfigError>(!parameters_.empty(),
                       "[TrainStep] the task has no parameter that requires a gradient; register the module's "
                       "parameters, or unfreeze some with requires_grad_(true)");
  if (options_.amp == at::kHalf && !options_.loss_scale) options_.loss_scale = LossScaleOptions{};
  checks_loss_ = options_.non_finite != NonFinite::kApply;
  if (options_.loss_scale && options_.non_finite == NonFinite::kApply) options_.non_finite = NonFinite::kSkip;
  if (options_.non_finite != NonFinite::kApply) norm_buffers_ = NormBuffers(*task_);
  if (options_.loss_scale) scaler_ = std::make_unique<GradScaler>(*options_.loss_scale, device_);
  ParamGroups groups = {{"", parameters_, {}}};
  if (options_.param_groups) groups = options_.param_groups(*task_, options_.optimizer);
  if (options_.allow_untrained) frozen_.clear();
  leave_out_untrained(groups, options_.allow_untrained, parameters_);
  clip_ = options_.clip_grad;
  if (const auto* clip = clip_ ? std::get_if<ClipAdaptive>(&*clip_) : nullptr)
    clip_ = adaptive_clipping(*clip, parameters_);
  if (options_.allow_untrained) {
    outside_ = std::make_unique<OutsideParameters>(parameters_, task_->named_parameters());
  }
  optimizer_ = Optimizer::create(options_.optimizer, groups, /*may_skip=*/options_.non_finite != NonFinite::kApply);
  if (optimizer_->needs_closure()) check_closure_options(options_);
  const bool only_stepped = !scaler_ && options_.non_finite == NonFinite::kApply;
  const OptimizerKind* kind = find_optimizer_kind(options_.optimizer);
  takes_sparse_ =
      kind != nullptr && kind->takes_any_layout && !options_.clip_grad && !options_.log_grad_norm && only_stepped;
  const bool clips = options_.clip_grad && !std::holds_alternative<ClipWith>(*options_.clip_grad);
  lays_out_ = clips || !only_stepped || (kind != nullptr && kind->fused && !kind->takes_any_layout);
  failed_ = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device_));
  kept_verdict_ = {at::ones_like(failed_), at::zeros_like(failed_), {}};
  if (!communicator().is_single()) {
    make_same_model(named_tensors(*task_), communicator());
    distributed_ = std::make_unique<DistributedStep>(*task_, parameters_, groups, device_, options_, *optimizer_);
  }
}

TrainStep::~TrainStep() = default;

// A parameter without a group would gather gradients and never be trained.
void TrainStep::check_frozen() const {
  for (const auto& [name, value] : frozen_) {
    if (!value.requires_grad()) continue;
    throw ConfigError(
        "[TrainStep] parameter '" + name +
        "' was frozen when the trainer was made, so it is in no parameter group, but "
        "requires a gradient now; make the trainer while it is trainable, and freeze it then until it is to train");
  }
}

void TrainStep::check_parameters() const {
  if (options_.allow_untrained) return;
  std::set<const void*> known;
  for (const NamedTensors& own : {parameters_, frozen_}) {
    for (const auto& parameter : own) known.insert(parameter.second.unsafeGetTensorImpl());
  }
  for (const auto& [name, value] : task_->named_parameters()) {
    if (!value.requires_grad() || known.contains(value.unsafeGetTensorImpl())) continue;
    throw ConfigError("[TrainStep] parameter '" + name +
                      "' has come to the model since the trainer was made, so it is in no parameter group and would "
                      "never be trained; make another trainer with the model as it is, or set allow_untrained");
  }
}

void TrainStep::zero_grad() {
  for (auto& parameter : parameters_) parameter.second.mutable_grad().reset();
}

void TrainStep::begin(const MicroBatches& micro_batches) {
  micro_batch_ = 0;
  check_frozen();
  zero_grad();
  optimizer_->begin();
  if (distributed_) distributed_->prepare(*optimizer_);
  if (micro_batches.batches.size() < 2 && !distributed_) return;
  while (factors_.size() < micro_batches.batches.size()) factors_.push_back(make_device_scalar(0, at::kFloat, device_));
  for (std::size_t i = 0; i < micro_batches.batches.size(); ++i) {
    write_device_scalar(factors_[i], micro_batches.weights[i] / micro_batches.total);
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

void check_values(const NamedTensors& given) {
  for (const auto& [name, tensor] : given) {
    if (tensor.defined()) continue;
    throw ConfigError("[Task] training_step gave '" + name +
                      "' without a value, expected a tensor; give it one, or leave it out");
  }
}

// value * factor, summed over the micro-batches.
void accumulate(at::Tensor& sum, const at::Tensor& value, const at::Tensor& factor) {
  const at::Tensor part = factor.defined() ? value.detach() * factor : value.detach();
  sum = sum.defined() ? sum + part : part;
}

void check_same_names(const NamedTensors& first, const NamedTensors& now, std::size_t index) {
  bool same = first.size() == now.size();
  for (std::size_t k = 0; same && index > 0 && k < first.size(); ++k) same = first[k].first == now[k].first;
  require<ConfigError>(same, "[Task] training_step logged other names for micro-batch " + std::to_string(index) +
                                 " than for the first of its micro_batches; log the same ones every time");
}

// What micro-batch `index` contributes to: the loss and the logged values.
void add_share(const StepOutput& step, const at::Tensor& factor, std::size_t index, StepResult& output) {
  const at::NoGradGuard no_grad;
  accumulate(output.loss, step.loss, factor);
  if (index == 0) output.log.resize(step.log.size());
  check_same_names(output.log, step.log, index);
  check_values(step.log);
  for (std::size_t k = 0; k < step.log.size(); ++k) {
    output.log[k].first = step.log[k].first;
    // A logged weight must keep the value it has now, not the one after the step.
    accumulate(output.log[k].second, factor.defined() ? step.log[k].second : step.log[k].second.clone(), factor);
  }
}

// Copies: what a hook keeps of them must not hold the step's graph, or change with the next step.
void keep_outputs(StepOutput& step, StepResult& output) {
  check_values(step.outputs);
  const at::NoGradGuard no_grad;
  NamedTensors& kept = output.outputs.emplace_back();
  for (const auto& [name, tensor] : step.outputs) kept.emplace_back(name, tensor.detach().clone());
}

}  // namespace

// Of a task whose other parameters are not to be trained, only those that are get a gradient.
void TrainStep::backward(const at::Tensor& loss) {
  OpTap::backward(loss, parameters_, [&] { outside_ ? outside_->backward_past(loss) : loss.backward(); });
}

// What training_step adds to the gradients would be in them twice.
void TrainStep::check_no_gradients() const {
  for (const auto& [name, value] : parameters_) {
    if (!value.grad().defined()) continue;
    throw ConfigError("[Task] training_step has called backward(): '" + name +
                      "' has a gradient before the trainer's own; return the loss and leave backward() to the trainer");
  }
}

void TrainStep::forward_backward(const MicroBatches& micro_batches, StepResult& output, bool keeps_outputs) {
  norm_buffers_.keep();
  const bool weighted = micro_batches.batches.size() > 1 || distributed_;
  std::optional<SyncBatchNorm> sync;  // through backward, which may compute layers again
  if (options_.distributed.sync_batchnorm) sync.emplace(communicator());
  if (distributed_) distributed_->begin();  // one step may run several times
  for (std::size_t i = 0; i < micro_batches.batches.size(); ++i) {
    micro_batch_ = i;
    const at::Tensor factor = weighted ? factors_[i] : at::Tensor();
    StepOutput step;
    {
      const AutocastGuard autocast(device_, options_.amp);
      step = task_->training_step(micro_batches.batches[i]);
    }
    if (keeps_outputs) keep_outputs(step, output);
    step.outputs.clear();  // not held through backward
    check_loss(step.loss);
    if (i == 0) check_no_gradients();
    if (step.loss.dim() > 0) step.loss = step.loss.reshape({});
    at::Tensor target = weighted ? step.loss * factor : step.loss;
    if (scaler_) target = target * scaler_->scale().reshape({});
    add_share(step, factor, i, output);
    if (distributed_ && i + 1 == micro_batches.batches.size()) distributed_->before_last_backward(output);
    backward(target);
  }
  if (distributed_) distributed_->after_backward(output, !micro_batches.batches.empty());
  norm_buffers_.put_back_unless_finite(output.loss);
  lay_out_gradients();
}

// Before any hook looks, so that it sees the gradients that are clipped and stepped with.
void TrainStep::lay_out_gradients() const {
  if (!lays_out_) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) lay_out_gradient(parameter.second);
}

std::vector<at::Tensor> TrainStep::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) {
    const at::Tensor& gradient = parameter.second.grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided && !takes_sparse_) {
      throw ConfigError(
          c10::str("[TrainStep] the gradient of '", parameter.first, "' is ", gradient.layout(),
                   ", expected a dense one; make its Embedding without sparse, or train with SparseAdam and without "
                   "clip_grad, log_grad_norm, loss_scale and non_finite"));
    }
    gradients.push_back(gradient);
  }
  require<ConfigError>(!gradients.empty(),
                       "[TrainStep] the loss gives no trainable parameter a gradient, expected at least one; "
                       "compute it from them, unfreeze some, or make a new trainer if they were replaced");
  return gradients;
}

// Gradients and, if asked for, the loss.
GradientCheck TrainStep::check_output_gradients(StepResult& output) {
  const bool checked = options_.non_finite != NonFinite::kApply;
  const std::vector<at::Tensor> all = gradients();
  const at::Tensor scale = scaler_ ? scaler_->scale() : at::Tensor();
  const bool gives_norm = clip_ && std::holds_alternative<ClipNorm>(*clip_);
  if (options_.log_grad_norm && !gives_norm) output.grad_norm = norm_of_gradients(all, scale);  // before they change
  GradientCheck verdict = check_gradients(all, clip_, scale, checked);
  if (gives_norm) output.grad_norm = verdict.norm;
  if (!checks_loss_) return verdict;
  const at::Tensor bad_loss = at::isfinite(output.loss).logical_not().to(at::kFloat).reshape({1});
  // A dynamic loss scale meets infinite gradients now and then and backs off; they are no failure.
  const bool backs_off = scaler_ && options_.loss_scale->dynamic;
  const at::Tensor failure = backs_off ? bad_loss : at::maximum(verdict.found_inf, bad_loss);
  verdict.found_inf = at::maximum(verdict.found_inf, bad_loss);
  if (options_.non_finite == NonFinite::kRaise) {
    failed_.copy_(at::maximum(failed_, failure));
    verdict.found_inf = at::maximum(verdict.found_inf, failed_);
  }
  return verdict;
}

StepResult TrainStep::run(const MicroBatches& micro_batches, StepObserver& observer) {
  StepResult output;
  if (optimizer_->needs_closure()) {
    require<ConfigError>(!observer.splits(),
                         "[TrainStep] a hook acts between backward and optimizer, where " + options_.optimizer.type() +
                             " evaluates the loss several times; remove the hook or use another optimizer");
    step_with_closure(micro_batches, output, observer.wants_outputs());
    const at::NoGradGuard no_grad;
    if (distributed_) distributed_->after_step();
    StepView context{parameters_, output, optimizer_->applied_steps().add(1), {}};  // counted when the step ends
    observer.in_step(context);
    return output;
  }
  forward_backward(micro_batches, output, observer.wants_outputs());
  const at::NoGradGuard no_grad;
  if (scaler_) output.log.emplace_back("loss_scale", scaler_->scale().reshape({}).clone());
  const StepView view{parameters_, output};
  observer.after_backward(view);
  run_rest(SplitPoint::kAfterBackward, output, observer);
  return output;
}

void TrainStep::run_rest(SplitPoint passed, StepResult& output, StepObserver& observer) {
  const at::NoGradGuard no_grad;
  StepView context{parameters_, output};
  GradientCheck verdict = passed == SplitPoint::kAfterBackward ? check_output_gradients(output) : kept_verdict_;
  if (passed == SplitPoint::kAfterBackward) {
    if (observer.splits()) keep_verdict(verdict);
    observer.before_optimizer_step(context);
  }
  optimizer_->step(verdict.grad_scale, verdict.found_inf);
  if (scaler_) scaler_->update(verdict.found_inf);
  if (distributed_) distributed_->after_step();
  context.applied = optimizer_->applied_steps();
  context.skipped = verdict.found_inf;
  context.scale_adapts = scaler_ && options_.loss_scale->dynamic;
  observer.in_step(context);
}

NonFiniteOp TrainStep::trace_non_finite(const MicroBatches& micro_batches) {
  const at::AutoGradMode with_gradients(true);
  std::vector<at::Tensor> before;
  for (const auto& parameter : parameters_) before.push_back(parameter.second.grad());
  const auto put_back = c10::make_scope_exit([&] {
    for (std::size_t i = 0; i < before.size(); ++i) parameters_[i].second.mutable_grad() = before[i];
  });
  zero_grad();
  NonFiniteTracer tracer(*task_);
  for (std::size_t i = 0; i < micro_batches.batches.size(); ++i) {
    const Batch& batch = micro_batches.batches[i];
    tracer.watch(batch, static_cast<int64_t>(i), [&] {
      StepOutput output;
      {
        const AutocastGuard autocast(device_, options_.amp);
        output = task_->training_step(batch);
      }
      check_loss(output.loss);
      backward(output.loss.reshape({}));
    });
  }
  return tracer.result();
}

void TrainStep::step_with_closure(const MicroBatches& micro_batches, StepResult& output, bool keeps_outputs) {
  bool first = true;
  optimizer_->step_with([&] {
    zero_grad();
    StepResult evaluated;
    forward_backward(micro_batches, evaluated, keeps_outputs && first);
    if (std::exchange(first, false)) output = evaluated;
    return evaluated.loss;
  });
}

std::string TrainStep::why_not_captured() const {
  if (!optimizer_->needs_closure()) return {};
  return options_.optimizer.type() +
         " evaluates the loss as often as its line search needs, which no capture can hold; use "
         "EagerTrainer (mode: eager), or another optimizer";
}

// Reading failed_ costs nothing on the CPU. Elsewhere it is read once in a while: no step is applied in between.
void TrainStep::raise_if_non_finite() {
  if (!device_.is_cpu() && ++unread_steps_ < kReadInterval) return;
  unread_steps_ = 0;
  if (read_device_scalar(failed_) == 0) return;
  // Off the CPU these may be the gradients of a later step.
  std::string where = device_.is_cpu() ? "the loss" : "the loss or a gradient";
  for (const auto& [name, value] : parameters_) {
    if (value.grad().defined() && !at::isfinite(value.grad()).all().item<bool>()) {
      where = "the gradient of '" + name + "'";
      break;
    }
  }
  failed_.zero_();
  throw NonFiniteError(
      c10::str("[TrainStep] ", where, " is not finite after ", applied(), " good steps, expected finite numbers; the ",
               "weights are those of the last good one. Lower the learning rate, clip gradients, look at ",
               "the data, or skip such steps with non_finite: skip"));
}

void TrainStep::end() {
  optimizer_->end();
  if (options_.non_finite == NonFinite::kRaise) raise_if_non_finite();
}

void TrainStep::settle() {
  unread_steps_ = kReadInterval;
  if (options_.non_finite == NonFinite::kRaise) raise_if_non_finite();
}

uint64_t TrainStep::fingerprint() const { return distributed_ ? distributed_->fingerprint() : 0; }

void TrainStep::recheck_ranks() {
  if (distributed_) distributed_->recheck();
}

}  // namespace duet
