#include "hooks/profiler_hook.h"
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/stubs/base.h>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/task.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

namespace fs = std::filesystem;
using torch::autograd::profiler::ProfilerResult;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// The trace itself has no place for them.
std::string flops_text(const ProfilerResult& result) {
  uint64_t flops = 0;
  for (const auto& event : result.events()) flops += event.flops();
  return c10::str(": ", flops, " floating-point operations in matrix products and convolutions");
}

// A trace is not worth a run: what goes wrong is logged.
void save(ProfilerResult& result, const std::string& path, bool with_flops) {
  const std::string part = path + ".tmp";
  std::error_code failed;
  const bool is_saved = !caught([&] { result.save(part); }) && fs::file_size(part, failed) > 0 && !failed;
  if (is_saved) fs::rename(part, path, failed);
  if (is_saved && !failed) {
    return log_info("[ProfilerHook] trace written to " + path + (with_flops ? flops_text(result) : ""));
  }
  log_error("[ProfilerHook] the trace " + path + " cannot be written (is the disk full?); training goes on without it");
  fs::remove(part, failed);
}

const torch::profiler::impl::ProfilerStubs& stubs() { return *torch::profiler::impl::cudaStubs(); }

struct Point : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> begin_point(const at::RecordFunction& span) {
  if (!std::string_view(span.name()).starts_with("hook:")) return nullptr;
  stubs().rangePush(span.name());
  return std::make_unique<Point>();
}

void end_point(const at::RecordFunction& /*span*/, at::ObserverContext* point) {
  if (point != nullptr) stubs().rangePop();
}

}  // namespace

// While it lives, every hook point of this thread is an NVTX range "hook:<name>:<point>", and so is every step. Ranges
// are a stack, but a step begins in the middle of one hook point and ends in that of another, so that either ends the
// range of the point that runs now.
class NvtxRanges {
 public:
  // Throws ConfigError unless this LibTorch is one with CUDA.
  NvtxRanges() {
    require<ConfigError>(stubs().enabled(),
                         "[ProfilerHook] found nvtx with a LibTorch that has no CUDA, expected one that has; leave "
                         "nvtx out, or use a LibTorch with CUDA");
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begin_point, &end_point).scopes({at::RecordScope::USER_SCOPE}));
  }
  ~NvtxRanges() {
    end_step();
    at::removeCallback(callback_);
  }
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

  void begin_step(int64_t step) {
    end_step();
    HookList::end_span();
    stubs().rangePush(c10::str("step ", step).c_str());
    in_step_ = true;
  }
  void end_step() {
    if (!std::exchange(in_step_, false)) return;
    HookList::end_span();
    stubs().rangePop();
  }

 private:
  at::CallbackHandle callback_;
  bool in_step_ = false;
};

// The tracer from its warm-up on. It is the thread's, so whoever began it must end it there.
struct ProfilerHook::Trace {
  Trace(const ProfilerHookOptions& options, const Task& task)
      : config(ProfilerState::KINETO, options.record_shapes, options.profile_memory, options.with_stack,
               options.with_flops) {
    if (options.cuda && device_of(task).is_cuda()) activities.insert(ActivityType::CUDA);
    if (torch::profiler::impl::profilerEnabled()) {
      throw ConfigError(
          "[ProfilerHook] found a profiler that runs in this thread already, expected none; end it before training, "
          "or remove this hook");
    }
    torch::autograd::profiler::prepareProfiler(config, activities);
  }
  ~Trace() {
    const std::exception_ptr error = caught([this] {
      if (state == State::kWarmup) start(0);  // the only way to end it
      stop();
    });
    if (error) log_error("[ProfilerHook] the profiler cannot be ended: " + text_of(error));
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void start(int64_t first) {
    first_step = first;
    torch::autograd::profiler::enableProfiler(config, activities);
    state = State::kRecording;
  }
  std::unique_ptr<ProfilerResult> stop() {
    end_step();
    if (std::exchange(state, State::kEnded) != State::kRecording) return nullptr;
    return torch::autograd::profiler::disableProfiler();
  }
  // The span that TensorBoard and other readers tell steps by.
  void begin_step(int64_t step) {
    last_step = step;
    end_step();
    step_range.emplace(at::RecordScope::USER_SCOPE);
    if (step_range->isActive()) step_range->before(c10::str("ProfilerStep#", step));
  }
  // Steps begin and end in the middle of a hook point. Its span must not lie across theirs.
  void end_step() {
    HookList::end_span();
    step_range.reset();
  }

  enum class State { kWarmup, kRecording, kEnded };

  std::set<ActivityType> activities = {ActivityType::CPU};
  ProfilerConfig config;
  State state = State::kWarmup;
  int64_t first_step = 0, last_step = 0;  // the last may not have begun
  std::optional<at::RecordFunction> step_range;
};

const OptionFields& ProfilerHookOptions::fields() {
  using O = ProfilerHookOptions;
  return described<O>("ProfilerHook", [](const auto& add) {
    add("skip_first", &O::skip_first, "steps before the first cycle").in(at_least(0)).or_within("schedule");
    add("wait", &O::wait, "steps of a cycle that nothing is done in").in(at_least(0)).or_within("schedule");
    add("warmup", &O::warmup, "steps with the tracer on and its results dropped").in(at_least(0)).or_within("schedule");
    add("active", &O::active, "steps in the trace").in(at_least(1)).or_within("schedule");
    add("repeat", &O::repeat, "cycles; 0: until training ends").in(at_least(0)).or_within("schedule");
    add("record_shapes", &O::record_shapes, "shapes of operator inputs");
    add("profile_memory", &O::profile_memory, "allocations");
    add("with_stack", &O::with_stack, "TorchScript's source lines");
    add("with_flops", &O::with_flops, "counts the operations of matrix products and convolutions, for the log");
    add("cuda", &O::cuda, "kernels and copies, if training runs on a GPU").keyed("activity_with_cuda");
    add("nvtx", &O::nvtx, "ranges for Nsight, in the whole run");
    add("folder", &O::folder, "where traces go; default <work_dir>/trace");
  });
}

ProfilerHook::ProfilerHook(ProfilerHookOptions options) : options_(std::move(options)) {
  check_options(options_);
  set_used(HookPoint::kBeforeTrainIter, options_.nvtx || options_.wait == 0);
}

ProfilerHook::~ProfilerHook() = default;

void ProfilerHook::before_train(TrainContext& context) {
  steps_ = 0;
  folder_ = output_folder("ProfilerHook", options_.folder, context, "trace");
  if (options_.nvtx) nvtx_ = std::make_unique<NvtxRanges>();
  go_on(context);
}

void ProfilerHook::before_train_iter(TrainContext& context) {
  if (nvtx_) nvtx_->begin_step(context.progress.step + 1);
  if (!trace_) go_on(context);
}

void ProfilerHook::after_train_iter(TrainContext& context) {
  if (nvtx_) nvtx_->end_step();
  ++steps_;
  if (!trace_ || phase_of(steps_ - 1) != Phase::kLast) return go_on(context);
  // A span that the caller of step() holds belongs to the trace that ends here, and must not be closed in another one's
  // memory: the next cycle begins in before_train_iter.
  write_trace(context);
}

void ProfilerHook::after_train(TrainContext& context) {
  write_trace(context);
  nvtx_.reset();
}

ProfilerHook::Phase ProfilerHook::phase_of(int64_t step) const {
  const int64_t cycle = options_.wait + options_.warmup + options_.active;
  const int64_t since = step - options_.skip_first, at = since % cycle;
  if (since < 0 || at < options_.wait || (options_.repeat > 0 && since / cycle >= options_.repeat)) return Phase::kOff;
  if (at < options_.wait + options_.warmup) return Phase::kWarmup;
  return at == cycle - 1 ? Phase::kLast : Phase::kRecording;
}

void ProfilerHook::go_on(TrainContext& context) {
  const Phase next = phase_of(steps_);
  if (next == Phase::kOff) return;
  if (!trace_) trace_ = std::make_unique<Trace>(options_, context.task);
  if (next == Phase::kWarmup) return;
  const int64_t step = context.progress.step + 1;
  if (trace_->state == Trace::State::kWarmup) trace_->start(step);
  trace_->begin_step(step);
  context.control.postpones_checks = true;
}

// Nothing is written if no step was recorded.
void ProfilerHook::write_trace(TrainContext& context) {
  context.control.postpones_checks = false;
  const std::unique_ptr<Trace> trace = std::move(trace_);
  const std::unique_ptr<ProfilerResult> result = trace ? trace->stop() : nullptr;
  if (!result) return;
  // A run that failed was in the middle of a step.
  const int64_t last = context.control.error.empty() ? context.progress.step : trace->last_step;
  if (last < trace->first_step) return;
  const std::string rank = rank_name(context);
  const std::string end = rank.empty() ? ".json" : "." + rank + ".json";
  save(*result, concat_text(folder_, "/step-", trace->first_step, "-", last, end), options_.with_flops);
}

}  // namespace duet
