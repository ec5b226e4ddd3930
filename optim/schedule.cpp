#include <duet/optim/schedule.h>

#include <c10/util/StringUtil.h>
#include <duet/core/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

namespace duet {

namespace {

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();
constexpr std::array kTypes = {"Constant", "Linear", "Step", "MultiStep", "Cosine", "Polynomial"};

template <class Value>
void check(bool valid, const char* field, const Value& found, const char* expected) {
  if (valid) return;
  throw ConfigError(
      c10::str("[Schedule] found ", field, " ", found, ", expected ", expected, "; correct it in param_scheduler"));
}

void check_number(const char* field, double value, bool zero_allowed) {
  check(std::isfinite(value) && (zero_allowed ? value >= 0 : value > 0), field, value,
        zero_allowed ? "a number >= 0" : "a number > 0");
}

// Annealing schedules are affine in the rate, so their order among others would matter.
bool anneals(const ScheduleOptions& schedule) { return schedule.type == "Cosine" || schedule.type == "Polynomial"; }
bool needs_end(const ScheduleOptions& schedule) { return schedule.type == "Linear" || anneals(schedule); }

int64_t end_of(const ScheduleOptions& schedule, int64_t run_length) {
  if (schedule.end >= 0) return schedule.end;
  return run_length > 0 ? run_length : kEndless;
}

bool overlap(const ScheduleOptions& a, const ScheduleOptions& b, int64_t run_length) {
  return std::max(a.begin, b.begin) < std::min(end_of(a, run_length), end_of(b, run_length));
}

double decayed(const ScheduleOptions& schedule, int64_t steps) {
  return std::pow(schedule.gamma, static_cast<double>(steps));
}

// The rate at update begin + s, where `rate` is what the schedule took over; 0 <= s < end - begin.
double apply(const ScheduleOptions& schedule, double rate, int64_t s, int64_t end) {
  const int64_t last = end - schedule.begin - 1;
  const double at = static_cast<double>(s);
  if (schedule.type == "Constant") return schedule.end < 0 || s < last ? rate * schedule.factor : rate;
  if (schedule.type == "Linear") {
    const double share = last > 0 ? at / static_cast<double>(last) : 1.0;
    // Both ends exact, which start + (end - start) * share is not.
    return rate * (schedule.start_factor * (1 - share) + schedule.end_factor * share);
  }
  if (schedule.type == "Step") return rate * decayed(schedule, s / schedule.step_size);
  if (schedule.type == "MultiStep") {
    const auto& marks = schedule.milestones;
    return rate * decayed(schedule, std::upper_bound(marks.begin(), marks.end(), s) - marks.begin());
  }
  const double share = schedule.type == "Cosine"
                           ? (1 + std::cos(std::numbers::pi * at / static_cast<double>(last + 1))) / 2
                           : std::pow(last > 0 ? 1 - at / static_cast<double>(last) : 1.0, schedule.power);
  return schedule.eta_min + (rate - schedule.eta_min) * share;
}

}  // namespace

void ScheduleOptions::validate() const {
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    throw ConfigError("[Schedule] found type '" + type +
                      "', expected one of Constant, Linear, Step, MultiStep, Cosine, Polynomial; correct it in "
                      "param_scheduler");
  }
  check(begin >= 0, "begin", begin, "an update >= 0");
  check(end == -1 || end > begin, "end", end, "an update after begin, or -1 for the end of the run");
  if (type == "Constant") check_number("factor", factor, true);
  if (type == "Linear") {
    check_number("start_factor", start_factor, true);
    check_number("end_factor", end_factor, true);
  }
  if (type == "Step") check(step_size >= 1, "step_size", step_size, "at least 1 update");
  if (type == "MultiStep") {
    const bool ascending =
        std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal<>()) == milestones.end();
    check(!milestones.empty() && milestones.front() >= 1 && ascending, "milestones",
          "(" + c10::Join(", ", milestones) + ")", "one or more updates >= 1 in ascending order");
  }
  if (type == "Step" || type == "MultiStep") check_number("gamma", gamma, false);
  if (anneals(*this)) check_number("eta_min", eta_min, true);
  if (type == "Polynomial") check_number("power", power, false);
}

double scheduled_lr(const std::vector<ScheduleOptions>& schedules, int64_t update, double initial_lr,
                    int64_t run_length) {
  std::vector<const ScheduleOptions*> chain;
  for (const ScheduleOptions& schedule : schedules) {
    if (schedule.begin <= update) chain.push_back(&schedule);
  }
  std::stable_sort(chain.begin(), chain.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });

  double rate = initial_lr;
  for (const ScheduleOptions* schedule : chain) {
    const int64_t end = end_of(*schedule, run_length);
    if (end <= schedule->begin) continue;  // the run ends before it would begin
    rate = apply(*schedule, rate, std::min(update, end - 1) - schedule->begin, end);
  }
  return rate;
}

void validate_schedules(const std::vector<ScheduleOptions>& schedules, int64_t run_length) {
  for (std::size_t i = 0; i < schedules.size(); ++i) {
    const ScheduleOptions& schedule = schedules[i];
    schedule.validate();
    if (needs_end(schedule) && schedule.end < 0 && run_length <= 0) {
      throw ConfigError(c10::str("[Schedule] found ", schedule.type, " without an end in a run of unknown length, ",
                                 "expected an end; set its end, or trainer.max_updates"));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!(anneals(schedule) || anneals(schedules[j])) || !overlap(schedule, schedules[j], run_length)) continue;
      throw ConfigError(c10::str("[Schedule] found ", schedules[j].type, " from update ", schedules[j].begin,
                                 " overlapping ", schedule.type, " from update ", schedule.begin,
                                 ", expected Cosine and Polynomial to govern their updates alone; let the earlier one ",
                                 "end where the later one begins"));
    }
  }
}

}  // namespace duet
