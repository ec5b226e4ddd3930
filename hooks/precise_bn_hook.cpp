#include "hooks/precise_bn_hook.h"
#include <map>
#include <optional>
#include <utility>
#include <vector>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>
#include "base/detail/bits.h"
#include "base/detail/concat_text.h"
#include "base/detail/op_tap.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/run_state.h"
#include "core/task.h"
#include "data/data_source.h"
#include "distributed/communicator.h"
#include "distributed/detail/sync_batch_norm.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

struct Statistics : OpListener {
  // By where a running mean or variance is, float64: of values (or squares); zeros (or of values); their number.
  std::map<const void*, at::Tensor> sums;

  void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    // Of each of them: input, weight, bias, running_mean, running_var, and training, but where it is for training
    // alone.
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    const std::string& name = op.schema().name();
    const bool is_norm = name.find("batch_norm") != std::string::npos && name.find("backward") == std::string::npos &&
                         arguments.size() > 6 && arguments[3].isTensor() && arguments[3].toTensor().defined();
    if (is_norm && !(arguments[5].isBool() && !arguments[5].toBool())) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      add(arguments[0].toTensor(), arguments[3].toTensor(), arguments[4].toTensor());
    }
    op.redispatchBoxed(below, stack);
  }

  void add(const at::Tensor& input, const at::Tensor& running_mean, const at::Tensor& running_var) {
    const auto moments = moments_of(input).split_with_sizes({input.size(1), input.size(1), 1});
    const at::Tensor &values = moments[0], &squares = moments[1], &number = moments[2];
    const auto put = [this](const at::Tensor& buffer, const at::Tensor& more) {
      at::Tensor& sum = sums[buffer.const_data_ptr()];
      sum = sum.defined() ? sum + more : more;
    };
    put(running_mean, at::cat({values, at::zeros_like(values), number}));
    put(running_var, at::cat({squares, values, number}));
  }
};

// Runs these batches; random numbers, flags and buffers are afterwards what they were.
void run_batches(TrainContext& context, DataSource& data, int64_t count, OpListener& listener) {
  Task& task = context.task;
  const StateBeforeEvaluation before(task);
  const auto put_back = c10::make_scope_exit([&, flags = task.training_flags()] {
    before.put_back();
    task.set_training_flags(flags);
  });
  task.train(true);
  data.start_epoch(context.progress.step);
  for (int64_t i = 0; i < count; ++i) {
    const std::optional<Batch> batch = data.next();
    if (!batch) break;
    const Batch moved = batch->to(device_of(task));
    const OpTap tap(listener);
    task.training_step(moved);
  }
}

void go_on(DataSource& data, const StateDict& position) {
  try {
    data.load_state_dict(position);
  } catch (const CheckpointError& error) {
    log_warning(concat_text("[PreciseBNHook] its data start from their beginning: ", error.what()));
  }
}

}  // namespace

const OptionFields& PreciseBNHookOptions::fields() {
  using O = PreciseBNHookOptions;
  return described<O>("PreciseBNHook", [](const auto& add) {
    add("num_iter", &O::num_iter, "batches of the training data that the statistics are taken over").in(at_least(1));
  });
}

PreciseBNHook::PreciseBNHook(std::shared_ptr<DataSource> data, const PreciseBNHookOptions& options)
    : data_(std::move(data)), options_(options) {
  check_options(options_);
}

void PreciseBNHook::after_val_epoch(TrainContext& /*context*/) { begun_ = {}; }

StateDict PreciseBNHook::state_dict() const {
  StateDict state = own_;
  if (data_ != nullptr)
    state.put("data", !position_.empty() ? position_ : begun_.empty() ? data_->state_dict() : begun_);
  return state;
}

void PreciseBNHook::load_state_dict(const StateDict& state) {
  position_ = data_ != nullptr && !data_->state_dict().empty() ? state.part("data") : StateDict();
  own_ = state.without("data");
  begun_ = {};
}

void PreciseBNHook::before_train_iter(TrainContext& context) {
  if (own_.tensors().empty()) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : context.task.named_buffers()) {
    if (!own_.has("weights." + name) || !same_bits(buffer, own_.tensor("precise." + name))) continue;
    buffer.detach().copy_(own_.tensor("weights." + name));
  }
  own_ = {};
}

void PreciseBNHook::before_val_epoch(TrainContext& context) {
  if (data_ == nullptr) return;
  before_train_iter(context);  // another validation may have been before this one
  const at::NoGradGuard no_grad;
  Statistics statistics;
  data_->set_shard(context.communicator->rank(), context.communicator->world_size());
  if (!position_.empty()) go_on(*data_, std::exchange(position_, {}));
  begun_ = data_->state_dict();
  run_batches(context, *data_, options_.num_iter, statistics);
  for (const auto& [name, buffer] : context.task.named_buffers()) {
    if (buffer.dim() != 1 || !buffer.is_floating_point()) continue;
    const int64_t length = buffer.numel();
    at::Tensor& values = statistics.sums[buffer.const_data_ptr()];
    if (!values.defined()) values = at::zeros({2 * length + 1}, buffer.options().dtype(at::kDouble));
    context.communicator->start_sum(values);
    context.communicator->finish(values);
    const auto count = values[2 * length].item<double>();
    if (count == 0) continue;
    const at::Tensor mean = values.narrow(0, 0, length) / count, of_values = values.narrow(0, length, length) / count;
    own_.set("weights." + name, buffer.detach().clone());
    buffer.detach().copy_(mean - of_values.square());
    own_.set("precise." + name, buffer.detach().clone());
  }
}

}  // namespace duet
