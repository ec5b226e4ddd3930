#include <duet/hooks/nan_guard_hook.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <duet/core/log.h>
#include <duet/core/task.h>

#include <utility>
#include <vector>

namespace duet {

namespace {

bool may_be_bad(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()) && tensor.numel() > 0;
}

// Names of the tensors that are not finite (or, with nan_only, hold a NaN), read from the device at once.
std::vector<std::string> bad_names(const NamedTensors& tensors, bool nan_only = false) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> flags;
  for (const auto& [name, tensor] : tensors) {
    if (!may_be_bad(tensor)) continue;
    names.push_back(name);
    flags.push_back(nan_only ? at::isnan(tensor).any() : at::isfinite(tensor).all().logical_not());
  }
  if (flags.empty()) return {};
  const at::Tensor bad = at::stack(flags).cpu();
  std::vector<std::string> found;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (bad.const_data_ptr<bool>()[i]) found.push_back(names[i]);
  }
  return found;
}

// "3 of the weights, 'a' the first"; adds nothing if there is none.
void mention(std::string& text, const char* one, const char* many, const std::vector<std::string>& names) {
  if (names.empty()) return;
  if (!text.empty()) text += ", ";
  text += names.size() == 1 ? c10::str(one, " '", names.front(), "'")
                            : c10::str(names.size(), " ", many, " from '", names.front(), "' on");
}

std::vector<std::string> bad_weights(const Task& task) { return bad_names(task.named_parameters()); }

// An infinity may be meant: the mask of an attention is a buffer.
std::vector<std::string> bad_buffers(const Task& task) { return bad_names(task.named_buffers(), /*nan_only=*/true); }

std::string weights_text(const Task& task) {
  std::string text;
  mention(text, "the weight", "weights", bad_weights(task));
  mention(text, "the buffer", "buffers", bad_buffers(task));
  return text;
}

// What is not finite after the last update, in the order of an update.
std::string scan(const TrainContext& context) {
  std::string text;
  if (context.output != nullptr) {
    NamedTensors values = {{"loss", context.output->loss}};
    values.insert(values.end(), context.output->log.begin(), context.output->log.end());
    values.emplace_back("grad_norm", context.output->grad_norm);
    mention(text, "the value", "values", bad_names(values));
  }
  NamedTensors gradients;
  for (const auto& [name, parameter] : context.task.named_parameters()) gradients.emplace_back(name, parameter.grad());
  mention(text, "the gradient", "gradients", bad_names(gradients));
  const std::string weights = weights_text(context.task);
  if (!weights.empty()) text += (text.empty() ? "" : ", ") + weights;
  return text.empty() ? "nothing any more" : text;
}

constexpr const char* kWayOut =
    "lower the learning rate, clip gradients, look at the data, or let such updates change nothing with non_finite: skip";

}  // namespace

void NaNGuardHookOptions::validate() const {
  if (interval < 1) {
    throw ConfigError(c10::str("[NaNGuardHook] found interval ", interval, ", expected at least 1 update; raise it"));
  }
  if (action != "raise" && action != "stop" && action != "warn") {
    throw ConfigError("[NaNGuardHook] found action '" + action + "', expected raise, stop or warn; correct it");
  }
}

NaNGuardHook::NaNGuardHook(NaNGuardHookOptions options) : options_(std::move(options)) { options_.validate(); }

void NaNGuardHook::before_train(TrainContext& context) {
  if (!poison_.defined()) {
    const at::Device device = context.task.named_parameters().front().second.device();
    poison_ = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
    good_ = at::zeros({}, at::TensorOptions().dtype(at::kLong).device(device));
  }
  restart(context.update);
}

void NaNGuardHook::restart(int64_t update) {
  poison_.zero_();
  good_.zero_();
  watch_start_ = update;
}

// Times zero, a finite number is 0 and any other NaN, which then sticks to a sum.
void NaNGuardHook::in_update(UpdateContext& context) {
  require<ConfigError>(poison_.defined(), "[NaNGuardHook] found a run under way; add this hook before the first update of a run");
  at::Tensor residue = context.output.loss.mul(0);
  if (context.output.grad_norm.defined()) residue = residue + context.output.grad_norm.mul(0);
  if (context.skipped.defined()) {
    residue = at::where(context.skipped.reshape({}) == 0, residue, at::zeros_like(residue));
  }
  poison_.add_(residue);
  good_.add_(poison_ == 0);
}

void NaNGuardHook::after_train_iter(TrainContext& context) {
  if ((context.update - watch_start_) % options_.interval == 0) look(context);
}

int64_t NaNGuardHook::first_bad_update(int64_t updates) const {
  const auto good = good_.item<int64_t>();
  return good < updates ? watch_start_ + good + 1 : 0;
}

void NaNGuardHook::look(TrainContext& context) {
  const int64_t bad = first_bad_update(context.update - watch_start_);
  if (bad == 0) return;
  const std::string text =
      c10::str("[NaNGuardHook] found loss or gradient norm not finite at update ", bad, ", looked at after update ", context.update,
               " (not finite by then: ", scan(context), "), expected finite numbers; ", kWayOut);
  restart(context.update);
  if (options_.action == "raise") throw NonFiniteError(text);
  log_warning(text);
  if (options_.action == "stop") context.request_stop(c10::str("update ", bad, " was not finite"));
}

void NaNGuardHook::before_save_checkpoint(TrainContext& context) {
  const std::string bad = weights_text(context.task);
  if (bad.empty()) return;
  const std::string text = c10::str("[NaNGuardHook] found ", bad, " not finite after update ", context.update,
                                    ", expected finite weights to save; go on from an earlier checkpoint and ", kWayOut);
  if (options_.action == "raise") throw NonFiniteError(text);
  throw CheckpointError(text);
}

void NaNGuardHook::after_train(TrainContext& context) {
  if (poison_.defined() && context.error.empty()) look(context);
}

}  // namespace duet
