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

Json of_texts(const Texts& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(encoding_json::of_text(text));
  return list;
}

Texts texts_of(const Json& list) {
  Texts texts;
  for (const Json& item : list) texts.push_back(encoding_json::text_of(item));
  return texts;
}

}  // namespace

Texts CsvDataset::Encoding::names() const {
  Texts names;
  for (const Column& column : features) names.push_back(column.name);
  return names;
}

std::string CsvDataset::Encoding::text() const {
  Json columns = Json::array();
  for (const Column& column : features) {
    Json json{{"name", encoding_json::of_text(column.name)}};
    if (column.categories.empty()) {
      json["mean"] = column.mean;
      json["deviation"] = column.deviation;
    } else {
      json["categories"] = of_texts(column.categories);
    }
    columns.push_back(std::move(json));
  }
  return Json{{"type", "Csv"},        {"features", std::move(columns)}, {"targets", of_texts(targets)},
              {"is_class", is_class}, {"class_count", class_count},     {"classes", of_texts(classes)}}
      .dump();
}

std::optional<CsvDataset::Encoding> CsvDataset::Encoding::of(const std::string& text) {
  return encoding_json::read_encoding(text, "Csv", [](const Json& json) {
    Encoding encoding{.targets = texts_of(json.at("targets")),
                      .classes = texts_of(json.at("classes")),
                      .is_class = json.at("is_class").get<bool>(),
                      .class_count = json.at("class_count").get<int64_t>()};
    for (const Json& column : json.at("features")) {
      const bool numbers = column.contains("mean");
      encoding.features.push_back({.name = encoding_json::text_of(column.at("name")),
                                   .categories = numbers ? Texts() : texts_of(column.at("categories")),
                                   .mean = numbers ? column.at("mean").get<double>() : 0,
                                   .deviation = numbers ? column.at("deviation").get<double>() : 1});
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
  if (other->is_kept_) {
    return require_encoding(other->encoding_,
                            "the checkpoint was trained with; put back the rows that it was trained "
                            "on, name their file by fit_on, or train anew with load_from");
  }
  const char* way_out = options_.fit_on.empty() ? "set fit_on to that, or the same path, val_fraction and split_seed"
                                                : "leave fit_on out to take those of the training data";
  require_encoding(other->encoding_, "the training data, " + other->options_.path + ", has it; " + way_out);
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
