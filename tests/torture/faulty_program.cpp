// The duet program with types that do harm where a config says so, for the programme of docs/reliability.md.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <unistd.h>
#include "base/error.h"
#include "base/options.h"
#include "base/state_dict.h"
#include "cli/registry.h"
#include "cli/run_cli.h"
#include "core/hook.h"
#include "data/transform.h"

namespace {

struct FaultOptions {
  std::string what = "throw";
  int64_t at = 0;
  int64_t rank = -1;
  std::string value = "nan";
  double seconds = 1;
  std::string once;

  static const duet::OptionFields& fields() {
    using O = FaultOptions;
    return duet::described<O>("Fault", [](const auto& add) {
      add("what", &O::what, "happens").one_of({"throw", "exit", "sleep", "value", "gradient", "weight", "optimizer"});
      add("at", &O::at, "steps that are finished by then; of a transform: the sample").in(duet::at_least(0));
      add("rank", &O::rank, "where; -1: on all");
      add("value", &O::value,
          "nan, inf or a number: what the first one of a sample, gradient, weight or optimizer state becomes");
      add("seconds", &O::seconds, "of sleep");
      add("once", &O::once, "a file that the fault makes, and that keeps it from happening again");
    });
  }
};

// Whether it is the first time: of all processes, one.
bool is_first(const FaultOptions& options) {
  if (options.once.empty()) return true;
  const int file = ::open(options.once.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return false;
  ::close(file);
  return true;
}

void spoil(const at::Tensor& tensor, const std::string& value) {
  const at::NoGradGuard no_grad;
  tensor.reshape({-1})[0].fill_(std::stod(value));
}

// Ends, throws or waits; false if the fault is in a number.
bool strike(const FaultOptions& options) {
  if (options.what == "throw") throw duet::DataError("[Fault] found a fault that was asked for");
  if (options.what == "exit") std::exit(1);
  if (options.what != "sleep") return false;
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  return true;
}

class FaultHook : public duet::Hook {
 public:
  explicit FaultHook(FaultOptions options) : options_(std::move(options)) {
    set_used(duet::HookPoint::kAfterBackward, options_.what == "gradient");  // which splits a captured step
  }
  std::string name() const override { return "fault"; }
  int priority() const override { return duet::kHighest; }

  void after_backward(duet::TrainContext& context) override {
    if (options_.what == "gradient" && is_due(context)) spoil(context.step.gradients().front(), options_.value);
  }
  void after_train_iter(duet::TrainContext& context) override {
    if (options_.what == "gradient" || !is_due(context) || strike(options_)) return;
    if (options_.what == "optimizer") return spoil_optimizer(context);
    spoil(context.step.parameters->front().second, options_.value);
  }

 private:
  bool is_due(const duet::TrainContext& context) const {
    const bool here = options_.rank < 0 || options_.rank == context.communicator->rank();
    return here && context.progress.step == options_.at && is_first(options_);
  }
  void spoil_optimizer(const duet::TrainContext& context) const {
    const duet::StateDict state = context.trainer.state_dict();
    for (const auto& [name, tensor] : state.tensors()) {
      if (name.starts_with("optimizer.") && tensor.is_floating_point() && tensor.numel() > 1) {
        return spoil(tensor, options_.value);
      }
    }
    throw duet::ConfigError("[Fault] found no state of the optimizer; choose another one");
  }

  FaultOptions options_;
};

class FaultTransform : public duet::Transform {
 public:
  explicit FaultTransform(FaultOptions options) : options_(std::move(options)) {}

  void apply(duet::Batch& sample, duet::SampleRandom&) const override {
    if (count_++ != options_.at || !is_here() || !is_first(options_) || strike(options_)) return;
    for (const auto& [name, tensor] : sample.items()) {
      if (tensor.is_floating_point()) return spoil(tensor, options_.value);
    }
  }

 private:
  // Its launcher or whoever started it says so.
  bool is_here() const {
    const char* const rank = std::getenv("RANK");
    return options_.rank < 0 || (rank != nullptr && std::atoll(rank) == options_.rank);
  }

  FaultOptions options_;
  mutable std::atomic<int64_t> count_ = 0;  // samples so far
};

}  // namespace

int main(int argc, char** argv) {
  const duet::AnyOptions described{FaultOptions()};
  duet::register_hook(
      "Fault",
      [](duet::ConfigNode& node, duet::HookContext&) {
        return std::make_unique<FaultHook>(duet::read_all_options<FaultOptions>(node));
      },
      described);
  duet::register_transform(
      "Fault",
      [](duet::ConfigNode& node) {
        return std::make_unique<FaultTransform>(duet::read_all_options<FaultOptions>(node));
      },
      described);
  return duet::run_cli(argc, argv);
}
