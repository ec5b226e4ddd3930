#include "optim/schedules/schedule_curve.h"
#include <algorithm>
#include <limits>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/schedules/detail/schedule_piece.h"

namespace duet {

namespace {

bool overlap(const SchedulePiece& a, const SchedulePiece& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

bool either_anneals(const SchedulePiece& a, const SchedulePiece& b) { return a.formula->anneals || b.formula->anneals; }

void check_alone(const std::vector<SchedulePiece>& pieces, const std::string& param_name) {
  for (auto late = pieces.begin(); late != pieces.end(); ++late) {
    for (auto early = pieces.begin(); early != late; ++early) {
      if (!either_anneals(*early, *late) || !overlap(*early, *late)) continue;
      throw ConfigError(c10::str("[Schedule] found ", early->name(), " overlapping ", late->name(), ", both of ",
                                 param_name, ", expected ", (late->formula->anneals ? late : early)->options.type,
                                 " to govern its steps alone; let the earlier one end where the later one begins"));
    }
  }
}

}  // namespace

void validate_schedules(const std::vector<ScheduleOptions>& schedules, const ScheduleRun& run) {
  for (const ScheduleOptions& schedule : schedules) schedule.validate();
  for (const std::string& param : scheduled_params(schedules)) check_alone(pieces_of(schedules, param, run), param);
}

std::vector<std::string> schedule_gaps(const std::vector<ScheduleOptions>& schedules, const ScheduleRun& run) {
  std::vector<std::string> gaps;
  for (const std::string& param : scheduled_params(schedules)) {
    const SchedulePiece* last = nullptr;  // the one that ends last so far
    const auto pieces = pieces_of(schedules, param, run);
    for (const SchedulePiece& piece : pieces) {
      if (piece.formula->waits) continue;
      if (last != nullptr && last->end < piece.begin && either_anneals(*last, piece)) {
        gaps.push_back(c10::str("[Schedule] ", last->name(), " ends at step ", last->end, " and ", piece.name(),
                                " follows: between ", last->end, " and ", piece.begin, " ", param,
                                " stays what it is; let one begin where the other ends if that is not meant"));
      }
      if (last == nullptr || piece.end > last->end) last = &piece;
    }
  }
  return gaps;
}

ScheduleCurve::ScheduleCurve(const std::vector<ScheduleOptions>& schedules, const std::string& param_name,
                             const ScheduleRun& run)
    : pieces_(std::make_shared<const std::vector<SchedulePiece>>(pieces_of(schedules, param_name, run))) {}

double ScheduleCurve::at(int64_t step, double initial, const std::vector<double>& reductions) const {
  double value = initial;
  for (const SchedulePiece& piece : *pieces_) {
    if (piece.begin > step) break;
    if (!piece.formula->waits) {
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

std::map<std::string, std::string> scheduled_numbers(const std::vector<ScheduleOptions>& schedules,
                                                     const HyperParameters& hyper_parameters) {
  std::map<std::string, std::string> params;
  for (const std::string& param : scheduled_params(schedules)) {
    const auto numbers = numbers_of(param, hyper_parameters);
    if (numbers.empty()) {
      throw ConfigError(c10::str(
          "[Schedule] found a schedule of ", param, ", expected one of the optimizer's numbers: ",
          c10::Join(", ", hyper_parameters.names()), "; remove it from param_scheduler, or choose another optimizer"));
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

std::map<std::string, std::vector<std::vector<double>>> schedule_table(const std::vector<ScheduleOptions>& schedules,
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
