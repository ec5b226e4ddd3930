#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/schedules/detail/schedule_rules.h"

// Schedules laid over a run, alone and together.

namespace duet {

// One schedule laid over a run.
struct SchedulePiece {
  Schedule schedule;          // in steps, or in epochs if it changes between epochs only
  ScheduleInterval interval;  // its own
  int64_t unit = 1;           // steps in one of its steps: 1, or those of an epoch
  int64_t begin = 0;          // in steps, as end
  int64_t end = kEndless;     // kEndless: unknown
  int64_t length = kEndless;  // in its own steps; kEndless if it has no end and needs none
  std::size_t plateau = 0;    // ReduceOnPlateau: its place among those of its number

  // Value at `step` >= begin of a group with that initial value.
  double at(int64_t step, double taken_over, double initial) const {
    const int64_t s = std::min(step / unit - interval.begin, length - 1);
    return schedule_value(schedule, {s, length, taken_over, initial});
  }
  // "Cosine from step 100", for messages
  std::string name() const { return c10::str(type_of(schedule), " from step ", begin); }
};

namespace {

template <class... Types>
bool is_any(const Schedule& schedule) {
  return (... || std::holds_alternative<Types>(schedule));
}

// Towards a level of its own instead of by a factor: its order among others matters, so it must govern alone.
bool anneals(const Schedule& schedule) {
  return is_any<Polynomial, Cosine, CosineRestart, OneCycle, WSD, CustomSchedule>(schedule);
}

// It follows a metric, not the time; its value comes from whoever watches the metric.
bool waits(const Schedule& schedule) { return is_any<ReduceOnPlateau>(schedule); }

// Where it ends by its own lengths, in its own steps; -1 if they do not say.
int64_t own_end(const Schedule& schedule, const ScheduleInterval& interval) {
  if (interval.end >= 0) return interval.end;
  if (const auto* restarts = std::get_if<CosineRestart>(&schedule)) {
    return std::accumulate(restarts->periods.begin(), restarts->periods.end(), interval.begin);
  }
  const auto* cycle = std::get_if<OneCycle>(&schedule);
  return cycle != nullptr && cycle->total_steps > 0 ? interval.begin + cycle->total_steps : -1;
}

// Whether its formula stretches over the whole interval.
bool needs_end(const Schedule& schedule) {
  const auto* cosine = std::get_if<Cosine>(&schedule);
  return (cosine != nullptr && cosine->T_max == 0) ||
         is_any<CustomSchedule, Linear, Polynomial, OneCycle, WSD>(schedule);
}

void check_parts(const SchedulePiece& piece) {
  const auto* wsd = std::get_if<WSD>(&piece.schedule);
  if (wsd == nullptr) return;
  const WsdLengths lengths = wsd_lengths(*wsd, piece.length);
  if (lengths.warmup + lengths.decay <= piece.length && lengths.decay >= 1) return;
  throw ConfigError(c10::str(
      "[Schedule] found a WSD of ", piece.length, " steps with ", lengths.warmup, " of warm-up and ", lengths.decay,
      " of decay, expected at least 1 of decay and both to fit; ", "correct its lengths, or its end"));
}

// Throws ConfigError if it counts epochs of unknown length or needs an end that is unknown.
SchedulePiece lay_over(const Schedule& schedule, const ScheduleRun& run) {
  if (std::holds_alternative<CustomSchedule>(schedule)) check_schedule(schedule);
  SchedulePiece piece{.schedule = in_steps(schedule, run.steps_per_epoch), .interval = {}};
  piece.interval = interval_of(piece.schedule);
  piece.unit = piece.interval.by_epoch ? run.steps_per_epoch : 1;
  piece.begin = piece.interval.begin * piece.unit;
  const int64_t end = own_end(piece.schedule, piece.interval);
  if (end >= 0) {
    piece.end = end * piece.unit;
    piece.length = end - piece.interval.begin;
  } else {
    if (run.steps > 0) piece.end = run.steps;
    if (needs_end(piece.schedule)) {
      if (run.steps <= 0) {
        throw ConfigError("[Schedule] found " + type_of(schedule) +
                          " without an end in a run of unknown length, expected "
                          "an end; set its end, or max_steps");
      }
      piece.length = (run.steps + piece.unit - 1) / piece.unit - piece.interval.begin;
    }
  }
  if (piece.begin < piece.end) check_parts(piece);
  return piece;
}

// One cycle drives two numbers, as in torch.
std::optional<Schedule> momentum_twin(const Schedule& schedule) {
  const auto* cycle = std::get_if<OneCycle>(&schedule);
  if (cycle == nullptr || !cycle->cycle_momentum || cycle->param_name == "momentum") return std::nullopt;
  OneCycle twin = *cycle;
  twin.param_name = "momentum";
  return twin;
}

// Those that drive `param_name` and begin within the run, in order of begin; equal ones in order of the list.
std::vector<SchedulePiece> pieces_of(const std::vector<Schedule>& schedules, const std::string& param_name,
                                     const ScheduleRun& run) {
  std::vector<SchedulePiece> pieces;
  std::size_t plateaus = 0;
  for (const Schedule& schedule : schedules) {
    const std::optional<Schedule> twin = param_name == "momentum" ? momentum_twin(schedule) : std::nullopt;
    if (!twin && interval_of(schedule).param_name != param_name) continue;
    SchedulePiece piece = lay_over(twin.value_or(schedule), run);
    if (waits(schedule)) piece.plateau = plateaus++;
    // A short trial of a long configuration ends before some of it begins.
    if (piece.begin < piece.end) pieces.push_back(std::move(piece));
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return pieces;
}

// The param_names that schedules drive, each once.
std::vector<std::string> scheduled_params(const std::vector<Schedule>& schedules) {
  std::vector<std::string> params;
  const auto add = [&](const std::string& param) {
    if (std::find(params.begin(), params.end(), param) == params.end()) params.push_back(param);
  };
  for (const Schedule& schedule : schedules) {
    add(interval_of(schedule).param_name);
    if (momentum_twin(schedule)) add("momentum");
  }
  return params;
}

bool overlap(const SchedulePiece& a, const SchedulePiece& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

bool either_anneals(const SchedulePiece& a, const SchedulePiece& b) {
  return anneals(a.schedule) || anneals(b.schedule);
}

void check_alone(const std::vector<SchedulePiece>& pieces, const std::string& param_name) {
  for (auto late = pieces.begin(); late != pieces.end(); ++late) {
    for (auto early = pieces.begin(); early != late; ++early) {
      if (!either_anneals(*early, *late) || !overlap(*early, *late)) continue;
      throw ConfigError(c10::str("[Schedule] found ", early->name(), " overlapping ", late->name(), ", both of ",
                                 param_name, ", expected ", type_of((anneals(late->schedule) ? late : early)->schedule),
                                 " to govern its steps alone; let the earlier one end where the later one begins"));
    }
  }
}

}  // namespace

ScheduleInterval interval_of(const Schedule& schedule) {
  return std::visit([](const auto& o) { return ScheduleInterval{o.begin, o.end, o.by_epoch, o.param_name}; }, schedule);
}

namespace {

// Everything of `options` that is counted in steps.
template <class T>
void multiply_lengths(T& options, int64_t steps_per_epoch) {
  const auto multiply = [&](int64_t& count) { count *= steps_per_epoch; };
  multiply(options.begin);
  if (options.end > 0) multiply(options.end);
  if constexpr (requires { options.step_size; }) multiply(options.step_size);
  if constexpr (requires { options.T_max; }) multiply(options.T_max);
  if constexpr (requires { options.total_steps; }) multiply(options.total_steps);
  if constexpr (requires { options.warmup_steps; }) multiply(options.warmup_steps);
  if constexpr (requires { options.decay_steps; }) multiply(options.decay_steps);
  if constexpr (requires { options.milestones; })
    std::for_each(options.milestones.begin(), options.milestones.end(), multiply);
  if constexpr (requires { options.periods; }) std::for_each(options.periods.begin(), options.periods.end(), multiply);
}

}  // namespace

Schedule in_steps(const Schedule& schedule, int64_t steps_per_epoch) {
  if (!interval_of(schedule).by_epoch) return schedule;
  if (steps_per_epoch <= 0) {
    throw ConfigError("[Schedule] found " + type_of(schedule) +
                      " with by_epoch: true in a run whose epochs have no known "
                      "length, expected steps; count in steps with by_epoch: false");
  }
  Schedule converted = schedule;
  std::visit(
      [&](auto& options) {
        if (!options.convert_to_iter_based) return;
        options.by_epoch = options.convert_to_iter_based = false;
        multiply_lengths(options, steps_per_epoch);
      },
      converted);
  auto* exponential = std::get_if<Exponential>(&converted);
  if (exponential != nullptr && !exponential->by_epoch)
    exponential->gamma = std::pow(exponential->gamma, 1.0 / static_cast<double>(steps_per_epoch));
  return converted;
}

void validate_schedules(const std::vector<Schedule>& schedules, const ScheduleRun& run) {
  for (const Schedule& schedule : schedules) check_schedule(schedule);
  for (const std::string& param : scheduled_params(schedules)) check_alone(pieces_of(schedules, param, run), param);
}

std::vector<std::string> schedule_gaps(const std::vector<Schedule>& schedules, const ScheduleRun& run) {
  std::vector<std::string> gaps;
  for (const Schedule& schedule : schedules) {
    const SchedulePiece piece = lay_over(schedule, run);
    const std::string name = c10::str("[Schedule] ", piece.name(), " of ", piece.interval.param_name);
    if (run.steps > 0 && piece.begin >= run.steps) {
      gaps.push_back(c10::str(name, " has no effect: the run ends at step ", run.steps,
                              "; let it begin earlier, or train longer, if that is not meant"));
    } else if (piece.length == 1 && is_any<Constant, Linear, Polynomial>(piece.schedule)) {
      gaps.push_back(name + " has its final value from the first: it governs one " +
                     (piece.interval.by_epoch ? "epoch" : "step") + ", its last; let it end one later");
    }
  }
  return gaps;
}

ScheduleCurve::ScheduleCurve(const std::vector<Schedule>& schedules, const std::string& param_name,
                             const ScheduleRun& run)
    : pieces_(std::make_shared<const std::vector<SchedulePiece>>(pieces_of(schedules, param_name, run))) {}

double ScheduleCurve::at(int64_t step, double initial, const std::vector<double>& reductions) const {
  double value = initial;
  for (const SchedulePiece& piece : *pieces_) {
    if (piece.begin > step) break;
    if (!waits(piece.schedule)) {
      value = piece.at(step, value, initial);
    } else if (piece.plateau < reductions.size()) {
      value *= reductions[piece.plateau];
    }
  }
  return value;
}

namespace {

// The numbers that `param_name` stands for, group by group.
std::vector<std::string> numbers_of(const std::string& param_name, const HyperParameters& hyper_parameters) {
  std::vector<std::string> numbers;
  for (std::size_t group = 0; group < hyper_parameters.group_count(); ++group) {
    const bool beta = param_name == "momentum" && !hyper_parameters.has(group, "momentum");
    const std::string number = beta ? "beta1" : param_name;
    const bool known = std::find(numbers.begin(), numbers.end(), number) != numbers.end();
    if (!known && hyper_parameters.has(group, number)) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

std::map<std::string, std::string> scheduled_numbers(const std::vector<Schedule>& schedules,
                                                     const HyperParameters& hyper_parameters) {
  std::map<std::string, std::string> params;
  for (const std::string& param : scheduled_params(schedules)) {
    const auto numbers = numbers_of(param, hyper_parameters);
    if (numbers.empty()) {
      throw ConfigError(
          c10::str("[Schedule] found a schedule of ", param,
                   ", expected one of the optimizer's numbers: ", c10::Join(", ", hyper_parameters.names()),
                   "; remove it from param_scheduler (TrainerOptions::schedules), or choose another optimizer"));
    }
    for (const std::string& number : numbers) {
      if (params.emplace(number, param).second) continue;
      throw ConfigError(c10::str("[Schedule] found schedules of ", param, " and of ", params.at(number),
                                 ", which are the same number here (", number, "), expected one name; use ", number,
                                 " for all of them"));
    }
  }
  return params;
}

std::map<std::string, std::vector<std::vector<double>>> schedule_table(const std::vector<Schedule>& schedules,
                                                                       const HyperParameters& hyper_parameters,
                                                                       const ScheduleRun& run, int64_t steps) {
  std::map<std::string, std::vector<std::vector<double>>> table;
  for (const auto& [number, param] : scheduled_numbers(schedules, hyper_parameters)) {
    const ScheduleCurve curve(schedules, param, run);
    auto& rows = table[number];
    for (int64_t step = 0; step < steps; ++step) {
      auto& row = rows.emplace_back(hyper_parameters.group_count(), std::numeric_limits<double>::quiet_NaN());
      for (std::size_t group = 0; group < row.size(); ++group) {
        if (hyper_parameters.has(group, number)) row[group] = curve.at(step, hyper_parameters.get(group, number));
      }
    }
  }
  return table;
}

}  // namespace duet
