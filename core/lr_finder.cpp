// What of BaseTrainer finds a learning rate: a sweep whose traces are removed, and what its curve suggests.
#include <algorithm>
#include <cmath>
#include <limits>
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
  constexpr int64_t kBegin = 10, kEnd = 1;
  const int64_t count = std::ssize(loss) - kBegin - kEnd;
  if (count < 2) return std::nullopt;
  const auto part = [count](const std::vector<double>& values) {
    return at::tensor(at::ArrayRef<double>(values).slice(kBegin, static_cast<std::size_t>(count)), at::kDouble);
  };
  const std::vector<at::Tensor> spacing = {part(lr)};
  const auto steepest = at::gradient(part(loss), at::TensorList(spacing)).front().argmin().item<int64_t>();
  return lr[static_cast<std::size_t>(kBegin + steepest)];
}

// Its loops as fastai has them: what they find depends on when they look.
std::optional<double> valley_of(const std::vector<double>& lr, const std::vector<double>& loss, int64_t num_training) {
  const auto first = static_cast<std::size_t>(num_training / 10);
  const int64_t count = std::ssize(loss) - num_training / 10 - 5;
  if (count < 2) return std::nullopt;
  std::vector<int64_t> falls(static_cast<std::size_t>(count), 1);
  std::size_t end = 0;
  int64_t start = 0;
  for (std::size_t i = 1; i < falls.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (loss[first + i] < loss[first + j]) falls[i] = std::max(falls[i], falls[j] + 1);
      if (falls[end] >= falls[i]) continue;
      end = i;
      start = static_cast<int64_t>(end) - falls[end];
    }
  }
  const int64_t length = static_cast<int64_t>(end) - start;
  const int64_t index = std::max<int64_t>(start + length / 3 + length / 6, 0);
  return lr[first + static_cast<std::size_t>(index)];
}

namespace {

// Of each group's learning rate to that of the optimizer, as they were configured.
std::vector<double> ratios_of(const TrainStep& step) {
  const double base = base_numbers(step.options().optimizer).at("lr");
  const StateDict state = step.state_dict();
  std::vector<double> ratios;
  for (std::size_t group = 0; group < step.group_count(); ++group) {
    const double own = state.number("configured." + std::to_string(group) + ".lr");
    ratios.push_back(base > 0 ? own / base : 1);
  }
  return ratios;
}

// Whether the sweep goes on after a step with this loss.
bool add_point(const LrFinderOptions& options, double lr, double loss, LrCurve& curve) {
  if (!std::isfinite(loss)) return false;
  constexpr double kBeta = 0.98;
  const auto correction = [&curve] { return 1 - std::pow(kBeta, curve.loss.size()); };
  const double mean = curve.loss.empty() ? 0 : curve.loss.back() * correction();
  curve.lr.push_back(lr);
  curve.loss.push_back(kBeta * mean + (1 - kBeta) * loss);
  curve.loss.back() /= correction();
  const double least = *std::ranges::min_element(curve.loss);
  return options.early_stop_threshold == 0 || least <= 0 || curve.loss.back() <= options.early_stop_threshold * least;
}

}  // namespace

void BaseTrainer::sweep_lr(DataSource& data, const LrFinderOptions& options, LrCurve& curve) {
  const std::vector<double> ratios = ratios_of(*step_);
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
      require<DataError>(std::exchange(any, false),
                         "[BaseTrainer] find_lr() got no batch to learn from in an epoch, expected at least one; check "
                         "the data");
      data.start_epoch(++epoch);
      continue;
    }
    if (!(read.total > 0)) continue;
    any = true;
    const double done = static_cast<double>(curve.lr.size()) / static_cast<double>(options.num_training - 1);
    const double lr = options.min_lr * std::pow(options.max_lr / options.min_lr, done);
    for (std::size_t group = 0; group < ratios.size(); ++group) step_->set(group, "lr", lr * ratios[group]);
    execute(read, nobody);
    goes_on = add_point(options, lr, result_.loss.item<double>(), curve);
  }
}

LrCurve BaseTrainer::find_lr(DataSource& data, const LrFinderOptions& options) {
  require<ConfigError>(options.min_lr > 0 && options.min_lr < options.max_lr && options.num_training >= 2,
                       c10::str("[BaseTrainer] find_lr() found min_lr ", options.min_lr, ", max_lr ", options.max_lr,
                                " and ", options.num_training, " steps, expected 0 < min_lr < max_lr and 2 steps"));
  finish();
  const StateDict before = host_copy(state_->state_dict()), position = data.state_dict();
  const Mode own_mode = mode();
  LrCurve curve;
  executor_->on_stream([&] {
    set_mode(Mode::kEager);
    std::exception_ptr error;
    try {
      sweep_lr(data, options, curve);
    } catch (const NonFiniteError&) {  // NonFinite::kRaise: the curve is at its end
    } catch (...) {
      error = std::current_exception();
    }
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
