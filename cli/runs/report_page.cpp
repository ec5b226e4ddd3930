#include "cli/runs/report_page.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <system_error>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "cli/runs/text_columns.h"
#include "io/bounded_json.h"
#include "io/file_io.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// Of the whole page: some 0.9 MB of curves. Pictures get what the rest leaves of `kPage`, at least 0.6 MB.
constexpr std::size_t kPoints = 24'000, kPage = 1'800'000, kFewestPictureBytes = 600'000;
constexpr std::size_t kMostPoints = 1000, kFewestPoints = 50;  // of a curve
constexpr std::size_t kMostCurves = 300;                       // of a run
constexpr std::size_t kMostHistograms = 400;                   // of a run
constexpr std::size_t kLongestText = 40'000, kLongestValue = 500;
constexpr std::size_t kLargestGraphFile = 200'000;
constexpr std::size_t kShownNotFinite = 50;  // of a curve

// Six digits: what is drawn needs no more, and a page of means would be twice as long.
Json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return std::strtod(number_text(value).c_str(), nullptr);
}

Json short_text(const std::string& text, std::size_t longest) {
  if (text.size() <= longest) return text;
  return text.substr(0, longest) + " ... (" + std::to_string(text.size()) + " characters in all)";
}

Json numbers_of(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(short_number(value));
  return list;
}

const char* name_of_non_finite(double value) { return std::isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf"; }

bool is_cell_of_matrix(const Curve& curve) { return curve.name.find("confusion_") != std::string::npos; }

// Neighbours become one point, the mean with its extremes, where there are more than `most`: what is smoothed later
// must not lean towards outliers, and no outlier may be lost. The curve begins and ends where the logged one does.
Json curve_json(const Curve& curve, std::size_t most) {
  std::span<const CurvePoint> points = curve.points;
  if (is_cell_of_matrix(curve) && !points.empty()) points = points.last(1);  // a matrix shows its last state alone
  Json json = {{"kind", curve.kind}, {"name", short_text(curve.name, kLongestValue)}, {"logged", points.size()}};
  std::vector<CurvePoint> finite;
  std::size_t not_finite = 0;
  for (const CurvePoint& point : points) {
    if (std::isfinite(point.value)) {
      finite.push_back(point);
    } else if (++not_finite <= kShownNotFinite) {
      json["bad"].push_back({short_number(point.step), short_number(point.seconds), name_of_non_finite(point.value)});
    }
  }
  if (not_finite > 0) json["bad_count"] = not_finite;
  const std::size_t count = std::min(most, finite.size());
  for (const char* key : {"x", "t", "y"}) json[key] = Json::array();
  for (std::size_t i = 0; i < count; ++i) {
    const auto some = std::span(finite)
                          .subspan(i * finite.size() / count)
                          .first((i + 1) * finite.size() / count - i * finite.size() / count);
    const CurvePoint& place = i == 0 ? some.front() : i + 1 == count ? some.back() : some[some.size() / 2];
    double mean = 0;
    for (const CurvePoint& point : some) mean += point.value / static_cast<double>(some.size());
    json["x"].push_back(short_number(place.step));
    json["t"].push_back(short_number(std::round(place.seconds * 10) / 10));
    json["y"].push_back(short_number(mean));
    if (count == finite.size()) continue;
    const auto [low, high] = std::ranges::minmax(some, {}, &CurvePoint::value);
    json["low"].push_back(short_number(low.value));
    json["high"].push_back(short_number(high.value));
  }
  return json;
}

Json curves_json(const LoggedRun& log, std::size_t most) {
  Json curves = Json::array();
  for (const Curve& curve : log.curves) {
    if (curves.size() == kMostCurves) break;
    curves.push_back(curve_json(curve, most));
  }
  return curves;
}

Json histograms_json(const LoggedRun& log) {
  Json list = Json::array();
  const std::size_t first = log.histograms.size() > kMostHistograms ? log.histograms.size() - kMostHistograms : 0;
  for (std::size_t i = first; i < log.histograms.size(); ++i) {
    const LoggedHistogram& histogram = log.histograms[i];
    list.push_back({{"name", short_text(histogram.name, kLongestValue)},
                    {"step", short_number(histogram.step)},
                    {"edges", numbers_of(histogram.edges)},
                    {"counts", numbers_of(histogram.counts)}});
  }
  return list;
}

Json pairs_json(const NamedTexts& texts) {
  Json list = Json::array();
  for (const auto& [name, text] : texts)
    list.push_back({short_text(name, kLongestValue), short_text(text, kLongestText)});
  return list;
}

Json config_json_of(const SavedConfig& config) {
  Json list = Json::array();
  for (const auto& [path, value] : config.values) {
    list.push_back({short_text(path, kLongestValue), short_text(value.text, kLongestValue),
                    short_text(value.origin, kLongestValue)});
  }
  return list;
}

Json pictures_json(const RunFolder& run, std::size_t bytes) {
  constexpr double kClockSkew = 2;  // seconds: a file server has a clock of its own
  const bool is_first = run.log.earlier_runs == 0;
  const RunPictures pictures =
      read_run_pictures(run.path, bytes, is_first ? 0 : seconds_of_time(run.log.began) - kClockSkew);
  Json shown = Json::array();
  for (const RunPicture& picture : pictures.shown) {
    shown.push_back({{"pass", picture.pass},
                     {"sample", picture.sample},
                     {"step", picture.step},
                     {"shrink", picture.shrink},
                     {"legend", short_text(picture.legend, kLongestValue)},
                     {"png", base64(picture.png)}});
  }
  return {{"found", pictures.found}, {"unreadable", pictures.unreadable}, {"shown", shown}};
}

// What graph mode made of the run's steps: what the run has left, and what `duet explain` has put beside it.
Json graph_reports(const std::string& folder) {
  Json reports = Json::array();
  for (const char* name : {"graph.json", "explain.json"}) {
    try {
      const auto json = parse_json_or_discard<Json>(file_io::read_text(c10::str(folder, "/", name), kLargestGraphFile));
      if (json.is_object()) reports.push_back({name, json.contains("graph") ? json["graph"] : json});
    } catch (const file_io::IoError&) {
      continue;  // it is not there, or too large
    }
  }
  return reports;
}

Json best_json(const RunFolder& run) {
  const BestMetric& best = run.best;
  if (best.name.empty()) return nullptr;
  return {{"name", best.name},
          {"less", best.is_less_better},
          {"best", short_number(best.best)},
          {"step", short_number(best.best_step)},
          {"last", short_number(best.last)}};
}

Json run_json(const RunFolder& run, std::size_t most) {
  const LoggedRun& log = run.log;
  Json json = {{"name", run.name},
               {"path", run.path},
               {"state", to_string(run.state)},
               {"reason", short_text(log.end_reason, kLongestText)},
               {"mode", log.mode},
               {"began", log.began},
               {"last_time", log.last_time},
               {"seconds", short_number(log.seconds)},
               {"step", log.step},
               {"planned_steps", log.planned_steps},
               {"epoch", log.epoch},
               {"lines", log.lines},
               {"unreadable_lines", log.unreadable_lines},
               {"earlier_runs", log.earlier_runs},
               {"curves_in_log", log.curves.size()}};
  const double loss = last_loss_of(run);
  const bool was_logged = log.curve("train", "loss") != nullptr;
  json["last_loss"] = was_logged && !std::isfinite(loss) ? Json(name_of_non_finite(loss)) : short_number(loss);
  json["best"] = best_json(run);
  json["curves"] = curves_json(log, most);
  json["histograms"] = histograms_json(log);
  json["texts"] = pairs_json(log.texts);
  json["config"] = config_json_of(run.config);
  json["config_problem"] = run.config.problem;
  json["environment"] = pairs_json(run.environment);
  json["graph"] = graph_reports(run.path);
  return json;
}

std::size_t drawn_curves(const std::vector<RunFolder>& runs) {
  std::size_t count = 0;
  for (const RunFolder& run : runs) {
    for (const Curve& curve : run.log.curves) count += is_cell_of_matrix(curve) ? 0 : 1;
  }
  return std::max<std::size_t>(count, 1);
}

// What the page shows of the runs; report_page/main.js reads it. However much they have logged, it stays small: curves
// are thinned, pictures chosen, long texts cut, and each says so.
Json page_data(const std::vector<RunFolder>& runs) {
  const std::size_t most = std::clamp(kPoints / drawn_curves(runs), kFewestPoints, kMostPoints);
  Json json = {{"duet", DUET_VERSION}, {"made", utc_now()}, {"most_points", most}, {"runs", Json::array()}};
  const auto with_pictures = std::count_if(runs.begin(), runs.end(), [](const RunFolder& run) {
    std::error_code ignored;
    return std::filesystem::is_directory(run.path + "/vis_data", ignored);
  });
  for (const RunFolder& run : runs) json["runs"].push_back(run_json(run, most));
  const std::size_t rest = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace).size();
  const std::size_t room = std::max(kFewestPictureBytes, (kPage - std::min(kPage, rest)) / 4 * 3);  // as base64
  const std::size_t bytes = room / static_cast<std::size_t>(std::max<std::ptrdiff_t>(with_pictures, 1));
  for (std::size_t i = 0; i < runs.size(); ++i) json["runs"][i]["pictures"] = pictures_json(runs[i], bytes);
  return json;
}

// All files whose names end like this, one after the other.
std::string files_ending_in(std::string_view ending) {
  std::string text;
  for (const auto& [name, content] : report_page_files()) {
    if (name.ends_with(ending)) text += content;
  }
  return text;
}

// JSON that may stand inside <script>: nothing in it looks like markup, whatever runs are called.
std::string harmless_json(const Json& json) {
  std::string text = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  c10::ReplaceAll(text, "<", "\\u003c");
  c10::ReplaceAll(text, ">", "\\u003e");
  c10::ReplaceAll(text, "&", "\\u0026");
  return text;
}

}  // namespace

std::string report_page(const std::vector<RunFolder>& runs) {
  const std::string frame = files_ending_in(".html");
  std::string page;
  std::size_t done = 0;
  // In the order of the frame: what is put in is never searched.
  const std::pair<std::string, std::string> parts[] = {{"{{style}}", files_ending_in(".css")},
                                                       {"{{data}}", harmless_json(page_data(runs))},
                                                       {"{{script}}", files_ending_in(".js")}};
  for (const auto& [mark, content] : parts) {
    const std::size_t at = frame.find(mark, done);
    page += frame.substr(done, at - done) + content;
    done = at + mark.size();
  }
  return page + frame.substr(done);
}

}  // namespace duet
