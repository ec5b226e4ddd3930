#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <nlohmann/json.hpp>
#include "cli/runs/run_folder.h"
#include "io/bounded_json.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// No run of ours comes near; a file from elsewhere could fill the memory with one line, or the time with names.
constexpr std::size_t kLongestLine = std::size_t{16} << 20, kMostNames = 20'000;

std::string string_at(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A number, or one of the words that stand for what JSON has no number for.
std::optional<double> number_of_json(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  if (text == "nan" || text == "inf" || text == "-inf") return std::strtod(text.c_str(), nullptr);
  return std::nullopt;
}

double number_at(const Json& record, const char* name, double fallback) {
  const auto found = record.find(name);
  return found == record.end() ? fallback : number_of_json(*found).value_or(fallback);
}

// Numbers of any size: a log may hold what no counter has room for.
int64_t count_at(const Json& record, const char* name) {
  const double value = number_at(record, name, 0);
  return value > 0 && value < 9e15 ? static_cast<int64_t>(value) : 0;
}

bool is_place(const std::string& name) {
  static constexpr std::array kPlaces = {"kind", "step", "wall_time", "run_id", "mode", "epoch", "iter"};
  return std::any_of(kPlaces.begin(), kPlaces.end(), [&](const char* place) { return name == place; });
}

// All elements as numbers; nothing if one is none.
std::optional<std::vector<double>> numbers_at(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::vector<double> numbers;
  for (const Json& item : *found) {
    if (!item.is_number()) return std::nullopt;
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

// {"counts": [...], "edges": [...]}
std::optional<LoggedHistogram> histogram_of(const std::string& name, double step, const Json& value) {
  if (!value.is_object()) return std::nullopt;
  std::optional<std::vector<double>> counts = numbers_at(value, "counts"), edges = numbers_at(value, "edges");
  if (!counts || counts->empty() || !edges || edges->size() != counts->size() + 1) return std::nullopt;
  return LoggedHistogram{name, step, std::move(*edges), std::move(*counts)};
}

class LogReader {
 public:
  void add_line(const std::string& line);
  LoggedRun take() { return std::move(run_); }

 private:
  void add_record(const Json& record);
  void start(const Json& record, double time);
  void forget_after(double step);
  void add_values(const Json& record, const std::string& kind);
  void add_text(const std::string& name, const std::string& text);
  void add_value(const std::string& kind, const std::string& name, const CurvePoint& point);
  // Where the values of that name are, or `next`, where the first of them goes now; nothing if there are too many
  // names.
  std::optional<std::size_t> place_of_name(const std::string& kind, const std::string& name, std::size_t next);
  double place_of(const Json& record, const std::string& kind) const;

  LoggedRun run_;
  std::map<std::pair<std::string, std::string>, std::size_t> places_;  // of curves and texts, by kind and name
  double last_ = 0;                                                    // wall time of the line before
  bool is_full_ = false;                                               // a name of this line had no room
};

void LogReader::add_line(const std::string& line) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return;
  ++run_.lines;
  const auto record = line.size() > kLongestLine ? Json() : parse_json_or_discard<Json>(line);
  is_full_ = false;
  if (record.is_object()) add_record(record);
  if (!record.is_object() || is_full_) ++run_.unreadable_lines;
}

void LogReader::add_record(const Json& record) {
  const std::string kind = string_at(record, "kind");
  const double time = seconds_of_time(string_at(record, "wall_time"));
  if (kind == "start") start(record, time);
  if (kind == "void") {
    forget_after(number_at(record, "step", 0));
    run_.step = count_at(record, "step");
  }
  if (time > 0) {
    if (last_ > 0) run_.seconds += std::max(0.0, time - last_);
    last_ = time;
    run_.last_time = string_at(record, "wall_time");
    if (run_.began.empty()) run_.began = run_.last_time;
  }
  if (const std::string mode = string_at(record, "mode"); !mode.empty()) run_.mode = mode;
  if (kind == "train" || kind == "val" || kind == "test" || kind == "histogram") {
    add_values(record, kind);
  } else if (kind == "epoch") {
    add_values(record, "train");
  } else if (kind == "stop") {
    run_.end_reason = string_at(record, "reason");
    run_.end = run_.end_reason == "done" ? RunStatus::kFinished : RunStatus::kStopped;
    if (string_at(record, "outcome") == "diverged") run_.end = RunStatus::kFailed;
    run_.step = count_at(record, "step");
  } else if (kind == "error") {
    run_.end = RunStatus::kFailed;
    run_.end_reason = string_at(record, "error");
    run_.step = std::max(run_.step, count_at(record, "step"));
  } else if (kind == "text") {
    for (const auto& [name, value] : record.items()) {
      if (!is_place(name) && value.is_string()) add_text(name, value.get<std::string>());
    }
  }
}

void LogReader::start(const Json& record, double time) {
  const double step = number_at(record, "step", 0);
  if (step <= 0 && !run_.began.empty()) {
    LoggedRun fresh;
    fresh.lines = run_.lines;
    fresh.unreadable_lines = run_.unreadable_lines;
    fresh.earlier_runs = run_.earlier_runs + 1;
    run_ = std::move(fresh);
    places_.clear();
  }
  if (time > 0) last_ = time;
  run_.end.reset();
  run_.end_reason.clear();
  run_.run_id = string_at(record, "run_id");
  run_.planned_steps = count_at(record, "steps");
  forget_after(step);
}

// A run that goes back undoes what it had logged since, which stands at the end.
void LogReader::forget_after(double step) {
  const auto shorten = [step](auto& list) {
    while (!list.empty() && list.back().step > step) list.pop_back();
  };
  for (Curve& curve : run_.curves) shorten(curve.points);
  shorten(run_.histograms);
}

// Results of evaluations may lie at their epoch, by the logger's options: the curves have one axis of steps.
double LogReader::place_of(const Json& record, const std::string& kind) const {
  const double step = number_at(record, "step", 0);
  const bool by_epoch =
      kind != "train" && step < static_cast<double>(run_.step) && step == number_at(record, "epoch", -1);
  return by_epoch ? static_cast<double>(run_.step) : step;
}

void LogReader::add_values(const Json& record, const std::string& kind) {
  const double step = place_of(record, kind);
  if (kind == "train") {
    run_.step = count_at(record, "step");
    run_.epoch = count_at(record, "epoch");
    // Training goes on after a line that said otherwise: a loop of the user's own may call train() again.
    run_.end.reset();
  }
  for (const auto& [name, value] : record.items()) {
    if (is_place(name)) continue;
    if (const auto number = number_of_json(value)) {
      add_value(kind, name, {step, run_.seconds, *number});
    } else if (auto histogram = histogram_of(name, step, value)) {
      run_.histograms.push_back(std::move(*histogram));
    }
  }
}

void LogReader::add_value(const std::string& kind, const std::string& name, const CurvePoint& point) {
  const std::optional<std::size_t> place = place_of_name(kind, name, run_.curves.size());
  if (!place) return;
  if (*place == run_.curves.size()) run_.curves.push_back({kind, name, {}});
  std::vector<CurvePoint>& points = run_.curves[*place].points;
  while (!points.empty() && points.back().step >= point.step) points.pop_back();
  points.push_back(point);
}

void LogReader::add_text(const std::string& name, const std::string& text) {
  const std::optional<std::size_t> place = place_of_name("text", name, run_.texts.size());
  if (!place) return;
  if (*place == run_.texts.size()) run_.texts.emplace_back(name, "");
  run_.texts[*place].second = text;
}

std::optional<std::size_t> LogReader::place_of_name(const std::string& kind, const std::string& name,
                                                    std::size_t next) {
  if (const auto known = places_.find({kind, name}); known != places_.end()) return known->second;
  is_full_ = places_.size() >= kMostNames;
  if (is_full_) return std::nullopt;
  return places_[{kind, name}] = next;
}

// Calls `add` for every line; of one that is too long, for its first part.
template <class Add>
void read_lines(const std::string& path, const Add& add) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;  // a pipe would wait for a writer
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(kLongestLine + 2);
  while (file.getline(buffer.data(), std::ssize(buffer)) || file.gcount() > 0) {
    const bool has_end = !file.eof() && !file.fail();  // which is counted, and not in the buffer
    add(std::string(buffer.data(), static_cast<std::size_t>(file.gcount()) - (has_end ? 1 : 0)));
    if (!file.fail() || file.eof()) continue;
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
}

}  // namespace

const Curve* LoggedRun::curve(const std::string& kind, const std::string& name) const {
  const auto found =
      std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.kind == kind && c.name == name; });
  return found == curves.end() ? nullptr : &*found;
}

double seconds_of_time(const std::string& text) {
  std::tm utc{};
  double seconds = 0;
  const int found = std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%lf", &utc.tm_year, &utc.tm_mon, &utc.tm_mday,
                                &utc.tm_hour, &utc.tm_min, &seconds);
  if (found != 6 || !std::isfinite(seconds)) return 0;
  utc.tm_year -= 1900;
  utc.tm_mon -= 1;
  return static_cast<double>(timegm(&utc)) + seconds;
}

LoggedRun read_logged_run(const std::string& path) {
  LogReader reader;
  read_lines(path, [&](const std::string& line) { reader.add_line(line); });
  return reader.take();
}

}  // namespace duet
