#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "data/detail/encoding_json.h"
#include "data/file_dataset.h"

// What the numbers of a table mean: checkpoints keep it, and it is compared with that of other tables.

namespace duet {

namespace {

using encoding_json::Json;
using Texts = std::vector<std::string>;

}  // namespace

Texts CsvDataset::Encoding::names() const {
  Texts names;
  for (const Column& column : features) names.push_back(column.name);
  return names;
}

std::string CsvDataset::Encoding::text() const {
  Json columns = Json::array();
  for (const auto& [name, categories, mean, deviation] : features) {
    columns.push_back({{"name", name}, {"mean", mean}, {"deviation", deviation}, {"categories", categories}});
  }
  return Json{{"type", "Csv"},        {"features", std::move(columns)}, {"targets", targets},
              {"is_class", is_class}, {"class_count", class_count},     {"classes", classes}}
      .dump();
}

// Older versions have left out what a column of numbers or one of categories does not need.
std::optional<CsvDataset::Encoding> CsvDataset::Encoding::of(const std::string& text) {
  return encoding_json::read_encoding(text, "Csv", [](const Json& json) {
    Encoding encoding{.targets = json.at("targets").get<Texts>(),
                      .classes = json.at("classes").get<Texts>(),
                      .is_class = json.at("is_class").get<bool>(),
                      .class_count = json.at("class_count").get<int64_t>()};
    for (const Json& column : json.at("features")) {
      encoding.features.push_back({.name = column.at("name").get<std::string>(),
                                   .categories = column.value("categories", Texts()),
                                   .mean = column.value("mean", 0.0),
                                   .deviation = column.value("deviation", 1.0)});
    }
    return encoding;
  });
}

std::string CsvDataset::encoding() const { return encoding_.text(); }

std::vector<std::string> CsvDataset::class_names() const {
  Texts names = encoding_.classes;
  if (!encoding_.is_class || !names.empty()) return names;
  for (int64_t number = 0; number < encoding_.class_count; ++number) names.push_back(std::to_string(number));
  return names;
}

void CsvDataset::check_fits(const Dataset& training) const {
  const auto* other = dynamic_cast<const CsvDataset*>(&training.source());
  if (other == nullptr) return;
  require_encoding(other->encoding_,
                   "the training data, " + other->options_.path +
                       ", has it; leave fit_on out, or set it to that file; " +
                       "where a checkpoint was trained on other rows, put these back, or train anew with load_from");
}

void CsvDataset::require_encoding(const Encoding& expected, const std::string& whose) const {
  const Json here = Json::parse(encoding_.text()), there = Json::parse(expected.text());
  const Json changes = Json::diff(there, here);
  if (changes.empty()) return;
  const Json::json_pointer place(changes[0]["path"].get<std::string>());
  // Of what is added at a list's end the place is no place in either: "/classes/-".
  const std::string found = changes[0].contains("value") ? one_line(changes[0]["value"].dump()) : "nothing";
  const std::string wanted = there.contains(place) ? one_line(there[place].dump()) : "nothing";
  std::string what = place.to_string();
  // "/features/2/mean": of which column.
  for (std::size_t i = 0; i < expected.features.size(); ++i) {
    if (what.starts_with(c10::str("/features/", i, "/")))
      what += " (column '" + one_line(expected.features[i].name) + "')";
  }
  throw ConfigError("[Csv] " + options_.path + ": " + what + " is " + found + ", expected " + wanted + ", as " + whose);
}

}  // namespace duet
