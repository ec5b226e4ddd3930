#include "hooks/small_hooks.h"
#include <array>
#include <atomic>
#include <csignal>
#include <map>
#include <mutex>
#include <utility>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "core/task.h"
#include "distributed/communicator.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

// What frees the unused blocks of the device that the model is on.
std::function<void()> cache_of(const Task& task) {
  const c10::DeviceType device = device_of(task).type();
  if (device == c10::DeviceType::CPU) {
    log_info("[EmptyCacheHook] the model is on the CPU, whose allocator keeps no cache: there is nothing to free");
    return [] {};
  }
  return [device] { c10::getDeviceAllocator(device)->emptyCache(); };
}

}  // namespace

const OptionFields& EmptyCacheHookOptions::fields() {
  using O = EmptyCacheHookOptions;
  static const OptionFields kFields = OptionFields::of<O>("EmptyCacheHook", [](const FieldAdder<O>& add) {
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
  return kFields;
}

EmptyCacheHook::EmptyCacheHook(EmptyCacheHookOptions options, std::function<void()> empty_cache)
    : empty_cache_(std::move(empty_cache)) {
  options.validate();
  using enum HookPoint;
  for (const HookPoint point : {kBeforeTrainEpoch, kBeforeValEpoch, kBeforeTestEpoch, kBeforePredictEpoch}) {
    set_used(point, options.before_epoch);
  }
  for (const HookPoint point : {kAfterTrainEpoch, kAfterValEpoch, kAfterTestEpoch, kAfterPredictEpoch}) {
    set_used(point, options.after_epoch);
  }
  for (const HookPoint point : {kAfterTrainIter, kAfterValIter, kAfterTestIter, kAfterPredictIter}) {
    set_used(point, options.after_iter);
  }
}

void EmptyCacheHook::free(TrainContext& context) {
  if (!empty_cache_) empty_cache_ = cache_of(context.task);
  empty_cache_();
}

namespace {

using Buffers = std::vector<at::Tensor>;

// All values one after the other, so that one message carries them.
at::Tensor flat(const Buffers& buffers) {
  Buffers parts;
  for (const at::Tensor& buffer : buffers) parts.push_back(buffer.reshape(-1));
  return at::cat(parts);
}

void copy_back(const at::Tensor& values, const Buffers& buffers) {
  int64_t offset = 0;
  for (const at::Tensor& buffer : buffers) {
    buffer.copy_(values.narrow(0, offset, buffer.numel()).view(buffer.sizes()));
    offset += buffer.numel();
  }
}

void average(Communicator& ranks, at::ScalarType type, const Buffers& buffers) {
  const bool has_16_bits = type == at::kHalf || type == at::kBFloat16;  // whose sum may round or overflow
  at::Tensor values = flat(buffers);
  if (has_16_bits) values = values.to(at::kFloat);
  const at::Tensor numbers = at::isComplexType(type) ? at::view_as_real(values) : values;  // no collective sums others
  ranks.start_sum(numbers);
  ranks.finish(numbers);
  values.div_(static_cast<double>(ranks.world_size()));
  copy_back(values, buffers);
}

// As bytes: no collective knows every type.
void copy_from_first(Communicator& ranks, const Buffers& buffers) {
  const at::Tensor values = flat(buffers);
  const at::Tensor bytes = values.view(at::kByte);
  ranks.start_broadcast(bytes, 0);
  ranks.finish(bytes);
  copy_back(values, buffers);
}

}  // namespace

void SyncBuffersHook::before_train(TrainContext& context) {
  synced_step_ = -1;
  if (context.communicator->world_size() == 1)
    log_info("[SyncBuffersHook] there is one process: its buffers are everybody's");
}

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

namespace {

constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGUSR1};

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

std::mutex guard;  // of what follows
int alive = 0;
std::array<struct sigaction, kSignals.size()> before;

extern "C" void duet_on_stop_signal(int signal) {
  if (noted.exchange(signal) != 0) _exit(128 + signal);
}

}  // namespace

StopSignals::StopSignals() {
  const std::lock_guard<std::mutex> lock(guard);
  if (alive++ > 0) return;
  noted = 0;
  struct sigaction action{};
  action.sa_handler = duet_on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  const std::lock_guard<std::mutex> lock(guard);
  if (--alive > 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

int StopSignals::received() { return noted; }

std::string StopSignals::name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

void StopSignalHook::before_run(TrainContext& /*context*/) { signals_ = std::make_unique<StopSignals>(); }

void StopSignalHook::after_run(TrainContext& /*context*/) { signals_.reset(); }

void StopSignalHook::poll(TrainContext& context) {
  const int signal = StopSignals::received();
  if (signal != 0) context.control.interrupt(StopSignals::name(signal) + " asked to stop");
}

}  // namespace duet
