#include <algorithm>
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

// The first that differs, as there may be hundreds: "category 1 of column 'c' is 'w', expected 'v'".
std::string list_difference(const std::string& what, const std::string& of, const Texts& found, const Texts& expected) {
  for (std::size_t i = 0; i < std::max(found.size(), expected.size()); ++i) {
    const auto item = [i](const Texts& list) { return i < list.size() ? "'" + list[i] + "'" : "missing"; };
    if (item(found) != item(expected)) {
      return c10::str(what, " ", i, of, " is ", one_line(item(found)), ", expected ", one_line(item(expected)));
    }
  }
  return "";
}

std::string number_difference(const std::string& what, OptionValue found, OptionValue expected) {
  return found == expected ? "" : what + " is " + text_of(found) + ", expected " + text_of(expected);
}

std::string first_of(std::initializer_list<std::string> texts) {
  const auto found = std::find_if(texts.begin(), texts.end(), [](const auto& text) { return !text.empty(); });
  return found == texts.end() ? "" : *found;
}

}  // namespace

std::string CsvDataset::Column::difference_from(const Column& expected) const {
  const std::string of = " of column '" + one_line(name) + "'";
  if (categories.empty() != expected.categories.empty()) {
    const auto kind = [](const Column& column) { return column.categories.empty() ? "numbers" : "categories"; };
    return c10::str("column '", one_line(name), "' holds ", kind(*this), ", expected ", kind(expected));
  }
  return first_of({list_difference("category", of, categories, expected.categories),
                   number_difference("the mean" + of, mean, expected.mean),
                   number_difference("the deviation" + of, deviation, expected.deviation)});
}

Texts CsvDataset::Encoding::names() const {
  Texts names;
  for (const Column& column : features) names.push_back(column.name);
  return names;
}

std::string CsvDataset::Encoding::difference_from(const Encoding& expected) const {
  const std::string columns = first_of({list_difference("feature", "", names(), expected.names()),
                                        list_difference("target", "", targets, expected.targets)});
  if (!columns.empty()) return columns;
  for (std::size_t i = 0; i < features.size(); ++i) {
    const std::string column = features[i].difference_from(expected.features[i]);
    if (!column.empty()) return column;
  }
  const std::string of = " of target " + join(targets);
  return first_of({list_difference("class", of, classes, expected.classes),
                   number_difference("whether there are classes" + of, is_class, expected.is_class),
                   number_difference("the number of classes" + of, class_count, expected.class_count)});
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
  if (encoding_ == expected) return;
  throw ConfigError("[Csv] " + options_.path + ": " + encoding_.difference_from(expected) + ", as " + whose);
}

}  // namespace duet
