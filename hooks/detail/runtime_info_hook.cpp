#include "hooks/detail/runtime_info_hook.h"
#include <algorithm>
#include <cctype>
#include <cmath>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/headeronly/version.h>
#include "base/device.h"
#include "base/log.h"
#include "core/task.h"
#include "distributed/communicator.h"

namespace duet {

namespace {

at::Device device_of(const Task& task) {
  const NamedTensors parameters = task.named_parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().second.device();
}

// "eager" is run by EagerTrainer.
std::string trainer_of(std::string mode) {
  if (!mode.empty()) mode[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(mode[0])));
  return mode + "Trainer";
}

void publish_rates(TrainContext& context) {
  publish_rate(context);
  HyperParameters& numbers = context.hyper_parameters;
  if (numbers.group_count() < 2 || !numbers.has(0, "lr")) return;
  context.log.gauge("max_lr", [&numbers] {
    const double first = numbers.get(0, "lr");
    double most = first;
    for (std::size_t group = 1; group < numbers.group_count(); ++group) {
      if (numbers.has(group, "lr")) most = std::max(most, numbers.get(group, "lr"));
    }
    return most > first ? most : std::nan("");
  });
}

std::string run_line(const TrainContext& context) {
  std::string text =
      c10::str("duet ", DUET_VERSION, " on LibTorch ", TORCH_VERSION, ": ", trainer_of(context.mode), " on ",
               device_of(context.task).str(), ", seed ", at::detail::getDefaultCPUGenerator().current_seed());
  if (!context.communicator->is_alone()) text += c10::str(", ", context.communicator->world_size(), " ranks");
  return text;
}

}  // namespace

void publish_rate(TrainContext& context) {
  HyperParameters& numbers = context.hyper_parameters;
  if (numbers.group_count() == 0 || !numbers.has(0, "lr")) return;
  context.log.gauge("lr", [&numbers] { return numbers.get(0, "lr"); });
}

// The first line of a run: before LoggerHook's own, which listens to texts from then on.
void RuntimeInfoHook::before_run(TrainContext& context) {
  if (context.is_main) log_info(run_line(context));
}

void RuntimeInfoHook::publish_momentum(TrainContext& context) {
  HyperParameters& numbers = context.hyper_parameters;
  if (numbers.group_count() == 0) return;
  for (const char* name : {"momentum", "beta1"}) {
    if (!numbers.has(0, name)) continue;
    if (!momentum_->initial) momentum_->initial = numbers.get(0, name);
    context.log.gauge("momentum", [&numbers, name, momentum = momentum_] {
      const double now = numbers.get(0, name);
      momentum->moved = momentum->moved || now != momentum->initial;
      return momentum->moved ? now : std::nan("");
    });
    return;
  }
}

void RuntimeInfoHook::before_train(TrainContext& context) {
  const at::Device device = device_of(context.task);
  publish_rates(context);
  publish_momentum(context);
  context.log.gauge("memory", [device] { return static_cast<double>(peak_bytes(device)) / 1048576; });

  if (context.is_main) context.log.text("runtime_info", run_line(context));
}

StateDict RuntimeInfoHook::state_dict() const {
  StateDict state;
  if (!momentum_->initial) return state;
  state.set("initial_momentum", StateValue(*momentum_->initial));
  state.set("momentum_moved", StateValue(momentum_->moved));
  return state;
}

void RuntimeInfoHook::load_state_dict(const StateDict& state) {
  Momentum loaded;
  if (state.has("initial_momentum")) loaded = {state.number("initial_momentum"), state.flag("momentum_moved")};
  *momentum_ = loaded;
}

}  // namespace duet
