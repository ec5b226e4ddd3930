#include <algorithm>
#include <iostream>
#include <numeric>
#include <optional>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/log.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/profile/op_clock.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "cli/work_dir.h"
#include "graph/graph_trainer.h"

namespace duet {

// `duet profile`: where the time of a step goes, and the memory.

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kWarmUp = 5;

// Begins and ends the clock's steps, inside of all other hooks.
class ClockHook : public Hook {
 public:
  explicit ClockHook(std::optional<OpClock>& clock) : clock_(clock) {}
  std::string name() const override { return "op_clock"; }
  int priority() const override { return kLowest; }

  void before_train(TrainContext& /*context*/) override { steps_ = 0; }
  void before_train_iter(TrainContext& context) override {
    if (steps_++ == kWarmUp) clock_.emplace(context.task);
    if (clock_) clock_->begin_step(std::ssize(context.step.micro_batches->batches));
  }

 private:
  std::optional<OpClock>& clock_;
  int64_t steps_ = 0;
};

double mean_of(const std::vector<double>& values) {
  const std::size_t first = std::min<std::size_t>(values.size(), kWarmUp);
  if (values.size() == first) return 0;
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(first), values.end(), 0.0) /
         static_cast<double>(values.size() - first);
}

// Microseconds per step without a clock, and of waiting for data.
struct Measured {
  double step_us = 0, data_us = 0;
  // Of graph mode:
  double checks_us = 0;  // in step_us
  std::string captures;
};

double check_seconds(const GraphTrainer& trainer) {
  double seconds = 0;
  for (const SignatureReport& signature : trainer.report()) seconds += signature.check_seconds;
  return seconds;
}

Measured measure(const RunConfig& original, const std::string& mode, const Run& data, int64_t steps) {
  const ScratchFolder folder;
  Run run = build_measured_run(in_scratch(original, folder.path()), mode, data, steps + kWarmUp);
  Measurements measured;
  run.trainer->add_hook(std::make_unique<MeasureHook>(measured, steps + kWarmUp));
  double checked_before = 0;
  if (run.graph != nullptr) {
    const auto note_checks = [&](TrainContext&) {
      if (std::ssize(measured.step_us) == kWarmUp) checked_before = check_seconds(*run.graph);
    };
    run.trainer->on(HookPoint::kAfterTrainIter, note_checks, "checks_of_warm_up", kLowest);
  }
  run.trainer->train(*run.train);
  Measured result{mean_of(measured.step_us), mean_of(measured.data_us), 0, ""};
  if (run.graph == nullptr) return result;
  result.checks_us = (check_seconds(*run.graph) - checked_before) * 1e6 / static_cast<double>(steps);
  for (const SignatureReport& signature : run.graph->report()) {
    if (signature.kind != "step") continue;
    result.captures += c10::str("  ", signature.signature, ": ", signature.state,
                                signature.reason.empty() ? "" : " (" + signature.reason + ")", ", ", signature.replays,
                                " replays, ", signature.checked, " of them checked\n");
  }
  return result;
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& item : tensors) bytes += static_cast<int64_t>(item.second.nbytes());
  return bytes;
}

struct Profile {
  Measured eager, graph;
  PhaseTimes phases;  // seconds of all steps
  std::vector<OpTime> ops;
  std::vector<std::pair<std::string, int64_t>> memory;  // bytes
  int64_t steps = 0;
};

void read_memory(Run& run, const OpClock& clock, Profile& profile) {
  int64_t gradients = 0;
  for (const auto& [name, tensor] : run.trainer->task().named_parameters()) {
    if (tensor.requires_grad()) gradients += static_cast<int64_t>(tensor.nbytes());
  }
  int64_t state = 0;
  const StateDict optimizer = run.trainer->state_dict().part("optimizer");
  for (const auto& [name, tensor] : optimizer.tensors()) state += static_cast<int64_t>(tensor.nbytes());
  profile.memory = {{"weights", bytes_of(run.trainer->task().named_parameters())},
                    {"buffers", bytes_of(run.trainer->task().named_buffers())},
                    {"gradients", gradients},
                    {"optimizer", state},
                    {"activations", clock.activation_bytes()}};
}

void time_ops(const RunConfig& original, const Run& data, int64_t steps, Profile& profile) {
  const ScratchFolder folder;
  Run run = build_measured_run(in_scratch(original, folder.path()), "eager", data, steps + kWarmUp);
  std::optional<OpClock> clock;
  run.trainer->add_hook(std::make_unique<ClockHook>(clock));
  const auto end_step = [&clock, steps](TrainContext& at) {
    if (clock) clock->end_step();
    if (at.progress.step >= steps + kWarmUp) at.control.request_stop("all steps were timed");
  };
  run.trainer->on(HookPoint::kAfterTrainIter, end_step, "op_clock_end", kHighest);
  run.trainer->train(*run.train);
  if (!clock) return;
  profile.phases = clock->phases();
  profile.ops = clock->ops();
  read_memory(run, *clock, profile);
}

// The clock costs time of its own: what it measured is a share of what a step takes without it.
void scale_to_steps(Profile& profile) {
  PhaseTimes& phases = profile.phases;
  const double measured = phases.forward + phases.backward + phases.optimizer + phases.hooks;
  if (measured <= 0) return;
  const double scale = profile.eager.step_us * 1e-6 * static_cast<double>(profile.steps) / measured;
  for (double* seconds : {&phases.forward, &phases.backward, &phases.optimizer, &phases.hooks}) *seconds *= scale;
  for (OpTime& op : profile.ops) op.seconds *= scale;
}

std::string text_of(double value, const char* format = "%.3f") { return number_text(value, format); }

void print_graph(const Measured& graph, double eager_us) {
  const auto row = [&](const char* name, double us) {
    return std::vector{std::string(name), text_of(us / 1e3), text_of(100 * us / graph.step_us, "%.1f")};
  };
  std::vector<std::vector<std::string>> rows = {{"graph mode", "ms per step", "%"}};
  rows.push_back({"data", text_of(graph.data_us / 1e3), ""});
  rows.push_back(row("replay and hooks", graph.step_us - graph.checks_us));
  rows.push_back(row("checks", graph.checks_us));
  rows.push_back({"step", text_of(graph.step_us / 1e3), ""});
  std::cout << text_columns(rows) << text_of(eager_us / graph.step_us, "%.2f") << " times as fast as eager mode\n"
            << graph.captures << "\n";
}

void print(const Profile& profile, int64_t shown) {
  const auto& [forward, backward, optimizer, hooks] = profile.phases;
  const double step_ms = profile.eager.step_us / 1e3;
  const auto steps = static_cast<double>(profile.steps);
  const auto with_share = [&](double seconds) {
    const double ms = seconds * 1e3 / steps;
    return std::pair{text_of(ms), text_of(100 * ms / step_ms, "%.1f")};
  };
  std::vector<std::vector<std::string>> rows = {{"eager mode", "ms per step", "%"}};
  rows.push_back({"data", text_of(profile.eager.data_us / 1e3), ""});
  for (const auto& [name, seconds] :
       {std::pair{"forward", forward}, {"backward", backward}, {"optimizer", optimizer}, {"hooks", hooks}}) {
    const auto [ms, share] = with_share(seconds);
    rows.push_back({name, ms, share});
  }
  rows.push_back({"step", text_of(step_ms), ""});
  std::cout << text_columns(rows) << "\n";
  if (profile.graph.step_us > 0) print_graph(profile.graph, profile.eager.step_us);
  rows = {{"memory", ""}};
  for (const auto& [name, bytes] : profile.memory) rows.push_back({name, readable_bytes(bytes)});
  std::cout << text_columns(rows) << "\n";
  rows = {{"ms per step", "%", "calls", "op", "module"}};
  for (const OpTime& op : profile.ops) {
    if (std::ssize(rows) > shown) break;
    const auto [ms, share] = with_share(op.seconds);
    rows.push_back({ms, share, text_of(static_cast<double>(op.calls) / steps, "%.4g"), op.op,
                    op.module.empty() ? "-" : op.module});
  }
  std::cout << text_columns(rows) << std::flush;
}

Json json_of(const Profile& profile) {
  const auto steps = static_cast<double>(profile.steps);
  const PhaseTimes& phases = profile.phases;
  Json json = {{"eager_us", profile.eager.step_us},
               {"data_us", profile.eager.data_us},
               {"forward_us", phases.forward * 1e6 / steps},
               {"backward_us", phases.backward * 1e6 / steps},
               {"optimizer_us", phases.optimizer * 1e6 / steps},
               {"hooks_us", phases.hooks * 1e6 / steps}};
  const bool has_graph = profile.graph.step_us > 0;
  json["graph_us"] = has_graph ? Json(profile.graph.step_us) : Json();
  json["checks_us"] = has_graph ? Json(profile.graph.checks_us) : Json();
  for (const auto& [name, bytes] : profile.memory) json["memory"][name] = bytes;
  for (const OpTime& op : profile.ops) {
    json["ops"].push_back({{"op", op.op},
                           {"module", op.module},
                           {"calls", static_cast<double>(op.calls) / steps},
                           {"us", op.seconds * 1e6 / steps}});
  }
  return json;
}

}  // namespace

int profile_command(const Arguments& arguments) {
  refuse_ranks("profile");
  RunConfig config = load_run_config(arguments);
  check_writable(arguments.json);
  config.val.clear();
  Run data;
  read_training_data(config, data);
  Profile profile;
  profile.steps = arguments.profile_steps;
  log_info(c10::str("profile: ", profile.steps, " steps after ", kWarmUp, " others, three times"));
  profile.eager = measure(config, "eager", data, profile.steps);
  if (config.mode == "graph") profile.graph = measure(config, "graph", data, profile.steps);
  time_ops(config, data, profile.steps, profile);
  scale_to_steps(profile);
  write_json(arguments.json, json_of(profile));
  constexpr int64_t kShown = 25;
  print(profile, kShown);
  return 0;
}

}  // namespace duet
