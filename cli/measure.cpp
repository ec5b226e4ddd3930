#include "cli/measure.h"
#include <algorithm>
#include <ATen/ops/stack.h>
#include "base/detail/bits.h"
#include "core/task.h"
#include "core/trainer.h"

namespace duet {

namespace {

constexpr std::size_t kBlock = 50;

}  // namespace

std::string weights_hash(BaseTrainer& trainer) {
  Xxh3 hash;
  const auto add = [&](const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      hash.update(name.data(), name.size());
      const at::Tensor bytes = tensor.detach().cpu().contiguous();
      if (bytes.numel() > 0) hash.update(bytes.const_data_ptr(), bytes.nbytes());
    }
  };
  add(trainer.task().named_parameters());
  add(trainer.task().named_buffers());
  return hash.hex();
}

Spread spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front()};
}

void MeasureHook::before_train_iter(TrainContext& /*context*/) {
  step_start_ = Clock::now();
  if (pending_.empty()) block_start_ = step_start_;
}

void MeasureHook::after_train_iter(TrainContext& context) {
  const auto now = Clock::now();
  target_.step_us.push_back(std::chrono::duration<double, std::micro>(now - step_start_).count());
  target_.data_us.push_back(context.step.data_seconds * 1e6);
  // The output's tensor is overwritten by the next step.
  pending_.push_back(context.step.loss().detach().clone());
  if (pending_.size() == kBlock) flush();
  const auto recorded = static_cast<int64_t>(target_.step_us.size());
  if (max_steps_ > 0 && recorded >= max_steps_) context.control.request_stop("all steps were measured");
}

void MeasureHook::after_train(TrainContext& context) {
  if (context.control.error.empty()) flush();
}

void MeasureHook::flush() {
  if (pending_.empty()) return;
  const bool device_runs_behind = !pending_.front().is_cpu();
  const at::Tensor losses = at::stack(pending_).to(at::kCPU, at::kDouble);
  const auto now = Clock::now();
  const double* values = losses.const_data_ptr<double>();
  target_.losses.insert(target_.losses.end(), values, values + losses.numel());
  if (device_runs_behind) {
    const double mean =
        std::chrono::duration<double, std::micro>(now - block_start_).count() / static_cast<double>(pending_.size());
    std::fill(target_.step_us.end() - static_cast<std::ptrdiff_t>(pending_.size()), target_.step_us.end(), mean);
  }
  pending_.clear();
}

}  // namespace duet
