#include "hooks/epoch_hooks.h"
#include <map>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/unflatten_dense_tensors.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/CachingDeviceAllocator.h>
#include "base/error.h"
#include "core/task.h"
#include "distributed/communicator.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

// The unused blocks of the device that the model is on.
void free_cache(const Task& task) {
  const c10::DeviceType device = device_of(task).type();
  if (device != c10::DeviceType::CPU) c10::getDeviceAllocator(device)->emptyCache();
}

}  // namespace

const OptionFields& EmptyCacheHookOptions::fields() {
  using O = EmptyCacheHookOptions;
  return described<O>("EmptyCacheHook", [](const auto& add) {
    add("before_epoch", &O::before_epoch, "before each epoch and pass");
    add("after_epoch", &O::after_epoch, "after each epoch and pass");
    add("after_iter", &O::after_iter, "after each step and batch, which costs a wait for the device");
    add.rule([](const O& o) {
      require<ConfigError>(
          o.before_epoch || o.after_epoch || o.after_iter,
          "[EmptyCacheHook] found before_epoch, after_epoch and after_iter off, expected one of them on; set one, "
          "or remove this hook");
    });
  });
}

EmptyCacheHook::EmptyCacheHook(const EmptyCacheHookOptions& options, std::function<void()> empty_cache)
    : CallbackHook("empty_cache") {
  check_options(options);
  const auto free_at = [this, &empty_cache](std::initializer_list<HookPoint> points) {
    for (const HookPoint point : points) {
      on(point, [empty_cache](TrainContext& context) { empty_cache ? empty_cache() : free_cache(context.task); });
    }
  };
  using enum HookPoint;
  if (options.before_epoch) free_at({kBeforeTrainEpoch, kBeforeValEpoch, kBeforeTestEpoch, kBeforePredictEpoch});
  if (options.after_epoch) free_at({kAfterTrainEpoch, kAfterValEpoch, kAfterTestEpoch, kAfterPredictEpoch});
  if (options.after_iter) free_at({kAfterTrainIter, kAfterValIter, kAfterTestIter, kAfterPredictIter});
}

namespace {

using Buffers = std::vector<at::Tensor>;  // of one type: their values one after the other are one message

void copy_back(const at::Tensor& values, const Buffers& buffers) {
  at::_foreach_copy_(buffers, at::unflatten_dense_tensors(values, buffers));
}

void average(Communicator& ranks, at::ScalarType type, const Buffers& buffers) {
  const bool has_16_bits = type == at::kHalf || type == at::kBFloat16;  // whose sum may round or overflow
  at::Tensor values = at::flatten_dense_tensors(buffers);
  if (has_16_bits) values = values.to(at::kFloat);
  const at::Tensor numbers = at::isComplexType(type) ? at::view_as_real(values) : values;  // no collective sums others
  ranks.start_sum(numbers);
  ranks.finish(numbers);
  values.div_(static_cast<double>(ranks.world_size()));
  copy_back(values, buffers);
}

// As bytes: no collective knows every type.
void copy_from_first(Communicator& ranks, const Buffers& buffers) {
  const at::Tensor values = at::flatten_dense_tensors(buffers);
  const at::Tensor bytes = values.view(at::kByte);
  ranks.start_broadcast(bytes, 0);
  ranks.finish(bytes);
  copy_back(values, buffers);
}

}  // namespace

void SyncBuffersHook::before_train(TrainContext& /*context*/) { synced_step_ = -1; }

void SyncBuffersHook::after_train_epoch(TrainContext& context) { synchronize(context); }

void SyncBuffersHook::before_val(TrainContext& context) {
  if (context.progress.step != synced_step_) synchronize(context);
}

// By type, in an order that all ranks share.
void SyncBuffersHook::synchronize(TrainContext& context) {
  synced_step_ = context.progress.step;
  if (context.communicator->world_size() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, Buffers> by_type;
  for (const auto& [name, buffer] : context.task.named_buffers()) {
    if (buffer.numel() > 0) by_type[buffer.scalar_type()].push_back(buffer.detach());
  }
  for (const auto& [type, buffers] : by_type) {
    if (at::isFloatingType(type) || at::isComplexType(type)) {
      average(*context.communicator, type, buffers);
    } else {
      copy_from_first(*context.communicator, buffers);
    }
  }
}

}  // namespace duet
