#include "hooks/precise_bn_hook.h"
#include <map>
#include <optional>
#include <utility>
#include <vector>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>
#include "base/detail/bits.h"
#include "base/detail/op_tap.h"
#include "base/device.h"
#include "base/error.h"
#include "core/task.h"
#include "data/data_source.h"
#include "distributed/communicator.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

// Of each buffer what batch norm is given as its running mean or variance. In float64.
class Statistics : public OpListener {
 public:
  explicit Statistics(const NamedTensors& buffers) {
    for (const auto& [name, buffer] : buffers) {
      if (!buffer.is_floating_point() || !buffer.has_storage()) continue;
      index_[buffer.storage().unsafeGetStorageImpl()] = sums_.size();
      sums_.push_back({name, buffer, at::zeros({2 * buffer.numel() + 1}, buffer.options().dtype(at::kDouble))});
    }
  }

  void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    const auto mean_at = op.schema().argumentIndexWithName("running_mean");
    const auto var_at = op.schema().argumentIndexWithName("running_var");
    const auto training = op.schema().argumentIndexWithName("training");  // of those that are for training alone: none
    const auto argument = [&](int index) { return (*stack)[stack->size() - op.schema().arguments().size() + index]; };
    const bool is_forward = op.schema().name().find("backward") == std::string::npos;
    if (is_forward && mean_at && var_at && (!training || argument(*training).toBool()) &&
        argument(*mean_at).isTensor() && argument(*var_at).isTensor()) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      add(argument(0).toTensor(), argument(*mean_at).toTensor(), argument(*var_at).toTensor());
    }
    op.redispatchBoxed(below, stack);
  }

  // Over all ranks; the buffers of layers that were called become theirs.
  void finish(Communicator& ranks, const std::function<void(const std::string& name, const at::Tensor& precise)>& put) {
    for (Sum& sum : sums_) {
      ranks.start_sum(sum.values);
      ranks.finish(sum.values);
      const int64_t length = sum.buffer.numel();
      const auto count = sum.values[2 * length].item<double>();
      if (count == 0) continue;
      const at::Tensor values = sum.values.narrow(0, 0, length) / count;
      put(sum.name, (values - (sum.values.narrow(0, length, length) / count).square()).view(sum.buffer.sizes()));
    }
  }

 private:
  struct Sum {
    std::string name;
    at::Tensor buffer;
    at::Tensor values;  // of means, or of squares; then, of squares alone, of means; then their number
  };

  void add(const at::Tensor& input, const at::Tensor& running_mean, const at::Tensor& running_var) {
    std::vector<int64_t> others = {0};
    for (int64_t dim = 2; dim < input.dim(); ++dim) others.push_back(dim);
    const auto [var, mean] = at::var_mean(input.to(at::kDouble), others, /*correction=*/at::Scalar(0));
    const double count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
    const at::Tensor one = at::full({1}, 1, mean.options());
    put(running_mean, at::cat({mean, at::zeros_like(mean), one}) * count);
    put(running_var, at::cat({var + mean.square(), mean, one}) * count);
  }

  void put(const at::Tensor& buffer, const at::Tensor& values) {
    const auto found = buffer.defined() ? index_.find(buffer.storage().unsafeGetStorageImpl()) : index_.end();
    if (found != index_.end()) sums_[found->second].values.add_(values);
  }

  std::map<const void*, std::size_t> index_;  // by storage
  std::vector<Sum> sums_;
};

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

void PreciseBNHook::load_state_dict(const StateDict& state) {
  own_ = {};
  for (const auto& [name, tensor] : state.tensors()) own_.set(name, tensor.clone());
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

void PreciseBNHook::before_val(TrainContext& context) {
  before_val_ = context.task.named_buffers();
  for (auto& item : before_val_) item.second = item.second.detach().clone();
}

void PreciseBNHook::before_val_epoch(TrainContext& context) {
  if (data_ == nullptr) return;
  const at::NoGradGuard no_grad;
  Task& task = context.task;
  const NamedTensors buffers = task.named_buffers();
  std::vector<at::Tensor> before;
  for (const auto& item : buffers) before.push_back(item.second.detach().clone());
  Statistics statistics(buffers);
  {
    const auto put_back = c10::make_scope_exit([&, random = random_state(), flags = task.training_flags()] {
      set_random_state(random);
      task.set_training_flags(flags);
      for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].second.detach().copy_(before[i]);
    });
    task.train(true);
    data_->set_shard(context.communicator->rank(), context.communicator->world_size());
    data_->start_epoch(context.progress.step);
    for (int64_t i = 0; i < options_.num_iter; ++i) {
      const std::optional<Batch> batch = data_->next();
      if (!batch) break;
      const Batch moved = batch->to(device_of(task));
      const OpTap tap(statistics);
      task.training_step(moved);
    }
  }
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < buffers.size(); ++i) index[buffers[i].first] = i;
  statistics.finish(*context.communicator, [&](const std::string& name, const at::Tensor& precise) {
    const std::size_t i = index.at(name);
    if (!own_.has("weights." + name)) own_.set("weights." + name, before_val_.at(i).second);
    buffers[i].second.detach().copy_(precise);
    own_.set("precise." + name, buffers[i].second.detach().clone());
  });
}

}  // namespace duet
