// What of BaseTrainer finds a learning rate: a sweep whose traces are removed, and what its curve suggests.
#include <algorithm>
#include <cmath>
#include <utility>
#include <ATen/ops/argmin.h>
#include <ATen/ops/gradient.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "core/detail/hook_observer.h"
#include "core/detail/micro_batch_reader.h"
#include "core/detail/rank_sync.h"
#include "core/detail/run_state.h"
#include "core/detail/train_step.h"
#include "core/trainer.h"
#include "optim/groups/detail/param_group_builder.h"

namespace duet {

std::optional<double> steepest_descent(const std::vector<double>& lr, const std::vector<double>& loss) {
  const at::Tensor x = at::tensor(lr, at::kDouble).slice(0, 10, -1);
  if (x.numel() < 2) return std::nullopt;
  const at::Tensor y = at::tensor(loss, at::kDouble).slice(0, 10, -1);
  const std::vector<at::Tensor> spacing = {x};
  return x[at::gradient(y, at::TensorList(spacing)).front().argmin()].item<double>();
}

// Its loops as fastai has them: what they find depends on when they look.
std::optional<double> valley_of(const std::vector<double>& lr, const std::vector<double>& loss, int64_t num_training) {
  const int64_t first = num_training / 10, count = std::ssize(loss) - first - 5;
  if (count < 2) return std::nullopt;
  const double* const losses = loss.data() + first;
  std::vector<int64_t> falls(static_cast<std::size_t>(count), 1);
  const auto length_of = [&falls](int64_t i) -> int64_t& { return falls[static_cast<std::size_t>(i)]; };
  int64_t start = 0, end = 0;
  for (int64_t i = 1; i < count; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      if (losses[i] < losses[j]) length_of(i) = std::max(length_of(i), length_of(j) + 1);
      if (length_of(end) >= length_of(i)) continue;
      end = i;
      start = end - length_of(end);
    }
  }
  const int64_t length = end - start;
  return lr[static_cast<std::size_t>(first + std::max<int64_t>(start + length / 3 + length / 6, 0))];
}

namespace {

// Whether the sweep goes on after a step with this loss.
bool add_point(const LrFinderOptions& options, double lr, double loss, LrCurve& curve) {
  if (!std::isfinite(loss)) return false;
  constexpr double kBeta = 0.98;
  const auto count = static_cast<double>(curve.loss.size());
  const double mean = curve.loss.empty() ? 0 : curve.loss.back() * (1 - std::pow(kBeta, count));
  curve.lr.push_back(lr);
  curve.loss.push_back((kBeta * mean + (1 - kBeta) * loss) / (1 - std::pow(kBeta, count + 1)));
  const double least = *std::ranges::min_element(curve.loss);
  return options.early_stop_threshold == 0 || least <= 0 || curve.loss.back() <= options.early_stop_threshold * least;
}

}  // namespace

void BaseTrainer::sweep_lr(DataSource& data, const LrFinderOptions& options, LrCurve& curve) try {
  const double base = base_numbers(step_->options().optimizer).at("lr");
  const StateDict configured = step_->state_dict().part("configured");
  StepObserver nobody;
  int64_t epoch = context_.progress.epoch;
  bool any = false, goes_on = true;
  task().train(true);
  data.set_shard(step_->communicator().rank(), step_->communicator().world_size());
  data.start_epoch(epoch);
  while (goes_on && std::ssize(curve.lr) < options.num_training) {
    MicroBatches read =
        reader_->read(data, options_.accumulate, context_.progress.step, context_.control).value_or(MicroBatches());
    if (!ranks_->before_step(read, /*stops_count=*/false).has_data) {
      require<DataError>(
          std::exchange(any, false),
          "[BaseTrainer] find_lr() got no batch to learn from in an epoch, expected one; check the data");
      data.start_epoch(++epoch);
      continue;
    }
    if (!(read.total > 0)) continue;
    any = true;
    const double done = static_cast<double>(curve.lr.size()) / static_cast<double>(options.num_training - 1);
    const double lr = options.min_lr * std::pow(options.max_lr / options.min_lr, done);
    for (std::size_t group = 0; group < step_->group_count(); ++group) {
      const double ratio = base > 0 ? configured.number(std::to_string(group) + ".lr") / base : 1;
      step_->set(group, "lr", lr * ratio);
    }
    execute(read, nobody);
    goes_on = add_point(options, lr, result_.loss.item<double>(), curve);
  }
} catch (const NonFiniteError&) {  // NonFinite::kRaise: the curve is at its end
}

LrCurve BaseTrainer::find_lr(DataSource& data, const LrFinderOptions& options) {
  require<ConfigError>(options.min_lr > 0 && options.min_lr < options.max_lr && options.num_training >= 2,
                       c10::str("[BaseTrainer] find_lr() found min_lr ", options.min_lr, ", max_lr ", options.max_lr,
                                " and ", options.num_training, " steps, expected 0 < min_lr < max_lr and 2 steps"));
  finish();
  const StateDict before = copy_of(state_->state_dict(), at::kCPU), position = data.state_dict();
  const Mode own_mode = mode();
  LrCurve curve;
  executor_->on_stream([&] {
    set_mode(Mode::kEager);
    phase_ = Phase::kRunning;
    const std::exception_ptr error = caught([&] { sweep_lr(data, options, curve); });
    phase_ = Phase::kBetween;
    state_->restore_but_hooks(before);
    if (!position.empty()) data.load_state_dict(position);
    result_ = {state_->loss, {}, {}};
    executors_->state_replaced();
    set_mode(own_mode);
    if (error) std::rethrow_exception(error);
  });
  curve.steepest = steepest_descent(curve.lr, curve.loss);
  curve.valley = valley_of(curve.lr, curve.loss, options.num_training);
  return curve;
}

}  // namespace duet
