#include <sstream>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "core/detail/step_executor.h"
#include "core/trainer.h"

namespace duet {

const char* to_string(StepExplanation::Reach reach) {
  using Reach = StepExplanation::Reach;
  switch (reach) {
    case Reach::kChangesResult: return "changes the result";
    case Reach::kCapturesAnew: return "captured anew";
    case Reach::kFrozen: return "frozen";
    case Reach::kNoEffect: return "no effect in either mode";
    case Reach::kUntried: return "not tried";
  }
  return "";
}

StepExplanation StepExecutor::explain(TrainStep& /*step*/, const MicroBatches& /*micro_batches*/,
                                      StepObserver& /*observer*/) {
  StepExplanation explanation;
  explanation.reason = "mode eager captures nothing; change to mode graph (set_mode) to see it";
  return explanation;
}

namespace {

using Reach = StepExplanation::Reach;

void write_obstacles(std::ostream& out, const StepExplanation& explanation) {
  for (const StepExplanation::Obstacle& obstacle : explanation.obstacles) {
    out << "  " << obstacle.what << (obstacle.times > 1 ? c10::str(" (", obstacle.times, " times)") : "") << "\n";
    if (!obstacle.where.empty()) out << "    where: " << obstacle.where << "\n";
    if (!obstacle.source.empty()) out << "    code:  " << obstacle.source << "\n";
    if (!obstacle.way_out.empty()) out << "    do:    " << obstacle.way_out << "\n";
  }
}

void write_ops(std::ostream& out, const StepExplanation& explanation) {
  const StepExplanation::Ops& ops = explanation.ops;
  out << "  ops: " << ops.recorded << " recorded, " << ops.needed << " needed, " << ops.instructions
      << " run by a replay";
  const char* lead = "\n  own kernels: ";
  for (const auto& [name, count] : ops.own_kernels) out << std::exchange(lead, "; ") << count << " x " << name;
  out << "\n  bytes: " << explanation.bytes << "\n";
  out << "  time: " << static_cast<int64_t>(explanation.replay_us) << " us replayed, "
      << static_cast<int64_t>(explanation.eager_us) << " us op by op\n";
}

// "lr of group 0, lr of group 1" of those with this reach.
std::vector<std::string> numbers_with(const StepExplanation& explanation, Reach reach) {
  std::vector<std::string> names;
  for (const StepExplanation::HyperParameter& number : explanation.hyper_parameters) {
    if (number.reach == reach) names.push_back(c10::str(number.name, " of group ", number.group));
  }
  return names;
}

void write_numbers(std::ostream& out, const StepExplanation& explanation) {
  const auto write = [&](Reach reach, const char* words) {
    const std::vector<std::string> names = numbers_with(explanation, reach);
    if (!names.empty()) out << "  " << words << ": " << join(names) << "\n";
  };
  write(Reach::kChangesResult, "reach the captured step");
  write(Reach::kCapturesAnew, "captured anew with every new value");
  write(Reach::kFrozen, "FROZEN, set() has no effect on the captured step");
  write(Reach::kNoEffect, "without effect on this step in either mode");
  write(Reach::kUntried, "not tried");
}

void write_remarks(std::ostream& out, const StepExplanation& explanation) {
  if (explanation.keeps_tensors) {
    out << "  somebody keeps tensors of the step (a module's member, a hook, a list): the host code of every step "
           "runs\n";
  }
  if (explanation.reads > 0) {
    out << "  reads " << explanation.reads << (explanation.reads == 1 ? " value" : " values")
        << " back to the host, guarded: before each replay they are computed and compared; with other values the step "
           "is captured anew\n";
  }
  if (!explanation.changes.empty()) {
    out << "  its host code did something else when it ran once more: " << explanation.changes
        << ". Such steps run op by op; keep a number that changes in a tensor, or name it in Task::graph_key\n";
  }
  if (!explanation.left_out.empty()) {
    out << "  hooks that act in the step took no part, as no run has begun: " << explanation.left_out
        << "; the report of a run says whether the step is captured with them\n";
  }
}

}  // namespace

std::string StepExplanation::text() const {
  std::ostringstream out;
  if (captured) {
    out << "the step is captured\n";
  } else if (obstacles.empty()) {
    out << "the step is not captured: " << reason << "\n";
  } else {
    out << "the step is not captured, it runs op by op; obstacles: " << obstacles.size() << "\n";
    write_obstacles(out, *this);
    if (!reason.empty()) out << "  " << reason << "\n";
  }
  for (const Split& split : splits) out << "  split at " << split.point << " by " << join(split.hooks) << "\n";
  write_remarks(out, *this);
  if (!captured) return out.str();
  write_ops(out, *this);
  write_numbers(out, *this);
  return out.str();
}

}  // namespace duet
