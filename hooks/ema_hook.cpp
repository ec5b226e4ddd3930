#include "hooks/ema_hook.h"
#include <algorithm>
#include <exception>
#include <limits>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "core/task.h"

namespace duet {

const OptionFields& EMAHookOptions::fields() {
  using O = EMAHookOptions;
  return described<O>("EMAHookOptions", [](const auto& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.average.*member; }; };
    using A = WeightAverageOptions;
    add("ema_type", of(&A::type), "how weights are averaged");
    add("momentum", of(&A::momentum), "how much the new value counts, in (0, 1]");
    add("half_life", of(&A::half_life), "steps after which a weight counts half; 0: momentum counts");
    add("gamma", of(&A::gamma), "of MomentumAnnealingEMA: momentum is at least gamma / (gamma + steps)")
        .read_by_hand("integer", "100");
    add("interval", of(&A::interval), "steps between averagings");
    add("update_buffers", &O::update_buffers, "averages floating-point buffers too");
    add("evaluate_on_ema", &O::evaluate_on_ema, "validation, test and prediction use the average");
    add("begin_iter", &O::begin_iter, "applied step that averaging begins with")
        .in(at_least(0))
        .also_keyed("start_iters");
    add("begin_epoch", &O::begin_epoch, "epoch that averaging begins with, the first being 1").in(at_least(0));
    add("name", &O::name, "name of the state in a checkpoint; default ema, further ones ema_2, ...")
        .read_by_hand("text");
    add.rule([](const O& o) {
      check_options(o.average);
      if (o.begin_iter == 0 || o.begin_epoch == 0) return;
      throw ConfigError(c10::str("[EMAHookOptions] begin_iter is ", o.begin_iter, " and begin_epoch is ", o.begin_epoch,
                                 ", expected at most one of them; remove the other"));
    });
  });
}

EMAHook::EMAHook(EMAHookOptions options) : options_(std::move(options)) { check_options(options_); }

EMAHook::~EMAHook() {
  try {
    give_weights_back();
  } catch (const std::exception& error) {  // a broken device
    log_error(std::string("[EMAHook] the model keeps the average instead of its own weights: ") + error.what());
  }
}

void EMAHook::attach(TrainContext& context) {
  if (average_) return;
  task_ = &context.task;
  const NamedTensors& parameters = *context.step.parameters;
  average_.emplace(options_.average, parameters.front().second.device());
  for (const auto& [name, tensor] : parameters) average_->add(name, tensor, /*is_weight=*/true);
  if (options_.update_buffers) {
    for (const auto& [name, tensor] : task_->named_buffers()) average_->add(name, tensor, /*is_weight=*/false);
  }
  if (loaded_) install(*loaded_);
}

void EMAHook::follow_buffers() {
  if (options_.update_buffers) average_->follow(task_->named_buffers());
}

void EMAHook::before_train(TrainContext& context) {
  end_pass();
  attach(context);
  loaded_.reset();
  if (options_.evaluate_on_ema) claim_evaluation(context);
  if (options_.begin_epoch > 0 && context.progress.steps_per_epoch <= 0) {
    throw ConfigError(c10::str("[EMAHook] begin_epoch is ", options_.begin_epoch,
                               ", but the length of an epoch is unknown, "
                               "expected one; count in steps with begin_iter"));
  }
  plan_start(context);
  // Elsewhere the momentum, or decay, of an average is the share that is kept; mmengine warns of it as well.
  const double momentum = options_.average.momentum;
  if (momentum <= 0.5 || options_.average.type == "StochasticWeightAverage") return;
  log_warning(c10::str("[EMAHook] found momentum ", momentum, ", the share of the new value, expected a small number; ",
                       "where that share was meant to be kept, set ", 1 - momentum));
}

void EMAHook::plan_start(const TrainContext& context) {
  const int64_t applied = context.hyper_parameters.applied();
  if (applied >= average_->start()) return;
  int64_t begin = options_.begin_iter;
  if (options_.begin_epoch > 0) {
    if (context.progress.steps_per_epoch <= 0) return;  // before_train will know
    begin = (options_.begin_epoch - 1) * context.progress.steps_per_epoch + context.progress.epoch_offset + 1;
  }
  average_->start_at(std::max(begin, applied + 1));
}

void EMAHook::in_step(StepView& context) {
  require<ConfigError>(average_.has_value(),
                       "[EMAHook] found no weights to average; add this hook before the first step of a run");
  follow_buffers();
  average_->update(context.applied, context.skipped);
}

// Whose average a model with two of them is evaluated with must be said.
void EMAHook::claim_evaluation(TrainContext& context) const {
  if (context.evaluation.averaged_by.empty()) context.evaluation.averaged_by = options_.name;
  if (context.evaluation.averaged_by == options_.name) return;
  throw ConfigError("[EMAHook] found two averages to evaluate with, '" + context.evaluation.averaged_by + "' and '" +
                    options_.name + "', expected one; set evaluate_on_ema: false for the other");
}

void EMAHook::before_train_iter(TrainContext&) {
  if (in_pass_) end_pass();
  loaded_.reset();  // a load that failed leaves it
}

void EMAHook::begin_pass(TrainContext& context) {
  end_pass();
  if (!options_.evaluate_on_ema || (!average_ && !loaded_)) return;
  attach(context);
  claim_evaluation(context);
  in_pass_ = true;
  put_average_in();
}

void EMAHook::end_pass() {
  give_weights_back();
  in_pass_ = false;
}

// Values are copied, so that a captured step finds the weights where they were. All are set aside first: the model may
// have one under two names.
void EMAHook::put_average_in() {
  if (!in_pass_ || !own_weights_.empty()) return;
  follow_buffers();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const auto& item : average_->items()) own.push_back(item.value.detach().clone());
  own_weights_ = std::move(own);
  for (const auto& item : average_->items()) item.value.detach().copy_(item.average);
}

void EMAHook::give_weights_back() const {
  if (own_weights_.empty()) return;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < own_weights_.size(); ++i) average_->items()[i].value.detach().copy_(own_weights_[i]);
  own_weights_.clear();
}

void EMAHook::before_save_checkpoint(TrainContext&) { give_weights_back(); }

// The trainer's state lends the live weights, which must be the model's own: reading it is no reason to refuse it in
// the middle of a pass.
StateDict EMAHook::state_dict() const {
  give_weights_back();
  if (!average_) return loaded_.value_or(StateDict());
  StateDict state;
  state.set("start", average_->start());
  for (const auto& item : average_->items()) state.set("weights." + item.name, item.average);
  for (const auto& [name, tensor] : named_tensors(*task_)) {
    if (!state.has("weights." + name)) state.set("weights." + name, tensor.detach());
  }
  return state;
}

void EMAHook::load_state_dict(const StateDict& state) {
  give_weights_back();
  loaded_.reset();
  if (!state.has("start")) {
    if (state.tensors().empty()) return;  // what state_dict() gives before the model is known
    state.integer("start");               // throws
  }
  loaded_ = state;
  if (average_) install(state);
}

void EMAHook::install(const StateDict& state) {
  const int64_t start = state.integer("start");
  for (const auto& item : average_->items()) {
    check_state(options_.name + ".weights." + item.name, state.tensor("weights." + item.name), item.average);
  }
  for (const auto& item : average_->items()) {
    copy_state(item.name, state.tensor("weights." + item.name), item.average);
  }
  average_->start_at(start);
}

void EMAHook::after_load_checkpoint(TrainContext& context) {
  end_pass();
  const bool has_average = loaded_.has_value();
  attach(context);
  loaded_.reset();
  if (!has_average) {
    average_->copy_values();
    average_->start_at(std::numeric_limits<int64_t>::max());
    log_info("[EMAHook] the checkpoint holds no average '" + options_.name + "': it starts from the loaded weights");
  }
  plan_start(context);
}

}  // namespace duet
