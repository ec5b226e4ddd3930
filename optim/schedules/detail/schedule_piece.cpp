#include "optim/schedules/detail/schedule_piece.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

namespace {

// Where it ends by its own lengths, in its own steps; -1 if they do not say.
int64_t own_end(const ScheduleOptions& schedule) {
  if (schedule.end >= 0) return schedule.end;
  if (schedule.type == "CosineRestart") {
    return std::accumulate(schedule.periods.begin(), schedule.periods.end(), schedule.begin);
  }
  if (schedule.type == "OneCycle" && schedule.one_cycle.total_steps > 0) {
    return schedule.begin + schedule.one_cycle.total_steps;
  }
  return -1;
}

// Whether its formula stretches over the whole interval.
bool needs_end(const ScheduleOptions& schedule) {
  const std::string& type = schedule.type;
  return schedule.formula || type == "Linear" || type == "Polynomial" || type == "OneCycle" || type == "WSD" ||
         (type == "Cosine" && schedule.T_max == 0);
}

void check_parts(const SchedulePiece& piece) {
  if (piece.options.type != "WSD") return;
  const WsdLengths lengths = wsd_lengths(piece.options.wsd, piece.length);
  if (lengths.warmup + lengths.decay <= piece.length && lengths.decay >= 1) return;
  throw ConfigError(c10::str(
      "[Schedule] found a WSD of ", piece.length, " steps with ", lengths.warmup, " of warm-up and ", lengths.decay,
      " of decay, expected at least 1 of decay and both to fit; ", "correct its lengths, or its end"));
}

// One cycle drives two numbers, as in torch.
ScheduleOptions momentum_twin(const ScheduleOptions& cycle) {
  ScheduleOptions twin = cycle;
  twin.param_name = "momentum";
  return twin;
}

bool has_momentum_twin(const ScheduleOptions& schedule) {
  return schedule.type == "OneCycle" && schedule.one_cycle.cycle_momentum && schedule.param_name != "momentum";
}

}  // namespace

double SchedulePiece::at(int64_t step, double taken_over, double initial) const {
  const int64_t s = std::min(step / unit - options.begin, length - 1);
  return formula->value(options, {s, length, taken_over, initial});
}

std::string SchedulePiece::name() const { return c10::str(options.type, " from step ", begin); }

ScheduleOptions in_steps(const ScheduleOptions& schedule, int64_t steps_per_epoch) {
  if (!schedule.by_epoch) return schedule;
  if (steps_per_epoch <= 0) {
    throw ConfigError("[Schedule] found " + schedule.type +
                      " with by_epoch: true in a run whose epochs have no known "
                      "length, expected steps; count in steps with by_epoch: false");
  }
  if (!schedule.convert_to_iter_based) return schedule;
  ScheduleOptions converted = schedule;
  converted.by_epoch = converted.convert_to_iter_based = false;
  for (int64_t* count : {&converted.begin, &converted.step_size, &converted.T_max, &converted.one_cycle.total_steps,
                         &converted.wsd.warmup_steps, &converted.wsd.decay_steps}) {
    *count *= steps_per_epoch;
  }
  if (converted.end > 0) converted.end *= steps_per_epoch;
  for (int64_t& milestone : converted.milestones) milestone *= steps_per_epoch;
  for (int64_t& period : converted.periods) period *= steps_per_epoch;
  if (converted.type == "Exponential")
    converted.gamma = std::pow(converted.gamma, 1.0 / static_cast<double>(steps_per_epoch));
  return converted;
}

SchedulePiece lay_over(const ScheduleOptions& schedule, const ScheduleRun& run) {
  SchedulePiece piece{.options = in_steps(schedule, run.steps_per_epoch), .formula = &schedule_formula(schedule)};
  const ScheduleOptions& options = piece.options;
  piece.unit = options.by_epoch ? run.steps_per_epoch : 1;
  piece.begin = options.begin * piece.unit;
  const int64_t end = own_end(options);
  if (end >= 0) {
    piece.end = end * piece.unit;
    piece.length = end - options.begin;
  } else {
    if (run.steps > 0) piece.end = run.steps;
    if (needs_end(options)) {
      if (run.steps <= 0) {
        throw ConfigError("[Schedule] found " + options.type +
                          " without an end in a run of unknown length, expected "
                          "an end; set its end, or max_steps");
      }
      piece.length = (run.steps + piece.unit - 1) / piece.unit - options.begin;
    }
  }
  if (piece.begin < piece.end) check_parts(piece);
  return piece;
}

std::vector<SchedulePiece> pieces_of(const std::vector<ScheduleOptions>& schedules, const std::string& param_name,
                                     const ScheduleRun& run) {
  std::vector<SchedulePiece> pieces;
  std::size_t plateaus = 0;
  for (const ScheduleOptions& schedule : schedules) {
    const bool twin = param_name == "momentum" && has_momentum_twin(schedule);
    if (schedule.param_name != param_name && !twin) continue;
    SchedulePiece piece = lay_over(twin ? momentum_twin(schedule) : schedule, run);
    if (piece.formula->waits) piece.plateau = plateaus++;
    // A short trial of a long configuration ends before some of it begins.
    if (piece.begin < piece.end) pieces.push_back(std::move(piece));
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return pieces;
}

std::vector<std::string> scheduled_params(const std::vector<ScheduleOptions>& schedules) {
  std::vector<std::string> params;
  const auto add = [&](const std::string& param) {
    if (std::find(params.begin(), params.end(), param) == params.end()) params.push_back(param);
  };
  for (const ScheduleOptions& schedule : schedules) {
    add(schedule.param_name);
    if (has_momentum_twin(schedule)) add("momentum");
  }
  return params;
}

}  // namespace duet
