#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "data/detail/class_order.h"
#include "data/detail/split.h"
#include "data/file_dataset.h"
#include "io/csv.h"

namespace duet {

namespace {

constexpr std::size_t kMaxClasses = 100;  // of whole numbers that task: auto takes for classes
constexpr std::size_t kMaxCategories = 1000;
constexpr std::size_t kFewRows = 20;  // of so few, most may be distinct by chance

std::optional<double> finite_number(const std::string& text) {
  const std::optional<double> number = parse_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::vector<std::string> values_of(const CsvTable& table, std::size_t column, const std::vector<int64_t>& rows) {
  std::vector<std::string> values;
  for (const int64_t row : rows) values.push_back(table.rows[static_cast<std::size_t>(row)][column]);
  return values;
}

// YAML without quotes leaves a backslash and a t.
char separator_of(const CsvOptions& options) { return options.separator == "\\t" ? '\t' : options.separator.front(); }

void check_feature_names(const CsvOptions& options) {
  std::set<std::string> seen;
  for (const std::string& name : options.features) {
    require<ConfigError>(name.empty() || name != options.target,
                         "[Csv] features hold the target '" + name + "', expected other columns; leave it out");
    require<ConfigError>(seen.insert(name).second,
                         "[Csv] features hold '" + name + "' twice, expected each column once; leave one out");
  }
}

// Whether the values are 0, 1, ... without a gap, and few.
bool number_classes(const std::vector<std::string>& values) {
  std::set<int64_t> seen;
  for (const std::string& text : values) {
    const std::optional<int64_t> number = parse_number<int64_t>(text);
    if (!number || *number < 0 || seen.size() > kMaxClasses) return false;
    seen.insert(*number);
  }
  return !seen.empty() && seen.size() <= kMaxClasses && *seen.rbegin() == static_cast<int64_t>(seen.size()) - 1;
}

[[noreturn]] void fail_value(const CsvTable& table, int64_t row, const std::string& column, const std::string& what) {
  throw DataError(c10::str("[Csv] ", table.path, ":", table.lines[static_cast<std::size_t>(row)], ": column '", column,
                           "': ", what));
}

}  // namespace

const OptionFields& CsvOptions::fields() {
  using O = CsvOptions;
  return described<O>("Csv", [](const auto& add) {
    add.about("A table: gives input float32 [N, values], target int64 [N] (classes) or float32 [N] (numbers).");
    add("path", &O::path, "a table whose first line holds the columns' names").needed();
    add("target", &O::target, "the column to predict; empty: none");
    add("features", &O::features, "columns to predict from; empty: all others");
    add("separator", &O::separator, "between two fields");
    add("task", &O::task, "auto: texts and 0, 1, 2, ... are classes").one_of({"auto", "classification", "regression"});
    add("standardize", &O::standardize, "numbers to mean 0 and standard deviation 1, by the rows trained on");
    add("fit_on", &O::fit_on, "the file whose rows give means, deviations and categories; empty: path");
    add("split", &O::split, "all, or a part drawn by split_seed").one_of({"all", "train", "val"});
    add("val_fraction", &O::val_fraction, "share of the rows that is val").in(between(0, 1));
    add("split_seed", &O::split_seed, "which rows are val");
    add.rule([](const O& o) {
      require<ConfigError>(o.separator.size() == 1 || o.separator == "\\t",
                           "[Csv] separator is '" + o.separator + "', expected one character");
    });
    add.rule(check_feature_names);
  });
}

// Finds out from the rows that are trained on what the columns mean, and applies it.
class CsvDataset::Fit {
 public:
  Fit(const CsvOptions& options, const CsvTable& table) : options_(options), table_(table) {
    const std::string split = options.split == "all" || !options.fit_on.empty() ? "all" : "train";
    rows_ = samples_of_split(std::ssize(table.rows), {split, options.val_fraction, options.split_seed},
                             "[Csv] " + table.path);
  }

  Encoding encoding() const {
    Encoding encoding;
    for (const std::string& name : feature_names()) encoding.features.push_back(fitted(name, options_.standardize));
    if (options_.target.empty()) return encoding;
    const std::vector<std::string> values = values_of(table_, table_.column(options_.target), rows_);
    const auto empty = std::find(values.begin(), values.end(), "");
    if (empty != values.end()) {
      fail_value(table_, rows_[static_cast<std::size_t>(empty - values.begin())], options_.target,
                 "found no value, expected one to predict; fill it in or leave the row out");
    }
    const bool numbers = options_.task == "classification" || holds_numbers(options_.target);
    const bool classes = number_classes(values);
    encoding.is_class = options_.task == "classification" || (options_.task == "auto" && (!numbers || classes));
    encoding.target.name = options_.target;
    if (encoding.is_class && !classes) {
      const ClassNames sorted(values.begin(), values.end());
      encoding.target.categories.assign(sorted.begin(), sorted.end());
    }
    encoding.class_count = static_cast<int64_t>(std::set<std::string>(values.begin(), values.end()).size());
    return encoding;
  }

 private:
  std::vector<std::string> feature_names() const {
    if (!options_.features.empty()) return options_.features;
    std::vector<std::string> names;
    for (const std::string& name : table_.columns) {
      if (name != options_.target) names.push_back(name);
    }
    require<DataError>(!names.empty(), "[Csv] " + table_.path + ": found no column beside the target");
    return names;
  }

  // Where most values are numbers, another text is a mistake and no category.
  bool holds_numbers(const std::string& name) const {
    const std::size_t place = table_.column(name);
    int64_t numbers = 0, texts = 0, first_text = 0;
    for (const int64_t row : rows_) {
      const std::string& text = table_.rows[static_cast<std::size_t>(row)][place];
      if (text.empty()) continue;
      const bool is_number = finite_number(text).has_value();
      if (!is_number && texts == 0) first_text = row;
      ++(is_number ? numbers : texts);
    }
    if (texts == 0 || numbers < texts) return texts == 0;
    fail_value(table_, first_text, name,
               c10::str("found '", table_.rows[static_cast<std::size_t>(first_text)][place],
                        "', expected a number as in ", numbers, " other rows; correct it or leave the row out"));
  }

  void check_categories(const std::string& name, std::size_t categories, std::size_t given) const {
    if (categories <= kMaxCategories && (given <= kFewRows || 2 * categories <= given)) return;
    throw DataError(c10::str("[Csv] ", table_.path, ": column '", name, "': found ", categories, " texts in ", given,
                             " rows, expected at most ", kMaxCategories, " categories, which come back in rows; ",
                             "is it an id? leave it out by features"));
  }

  Column fitted(const std::string& name, bool standardize) const {
    const std::vector<std::string> values = values_of(table_, table_.column(name), rows_);
    Column column{.name = name};
    std::vector<std::string> given;
    std::copy_if(values.begin(), values.end(), std::back_inserter(given), [](const auto& v) { return !v.empty(); });
    if (!holds_numbers(name)) {
      const ClassNames sorted(given.begin(), given.end());
      check_categories(name, sorted.size(), given.size());
      column.categories.assign(sorted.begin(), sorted.end());
      return column;
    }
    if (!standardize || given.empty()) return column;
    double sum = 0, squares = 0;
    for (const std::string& text : given) sum += *finite_number(text);
    column.mean = sum / static_cast<double>(given.size());
    for (const std::string& text : given) squares += std::pow(*finite_number(text) - column.mean, 2);
    column.deviation = std::sqrt(squares / static_cast<double>(given.size()));
    // Of a constant column rounding leaves a little, which must not become 1.
    const bool constant = std::all_of(given.begin(), given.end(), [&](const auto& v) { return v == given.front(); });
    if (constant) column.mean = *finite_number(given.front());
    const double rounding = 10 * std::numeric_limits<double>::epsilon() * std::abs(column.mean);
    if (constant || column.deviation <= rounding) column.deviation = 1;
    return column;
  }

  const CsvOptions& options_;
  const CsvTable& table_;
  std::vector<int64_t> rows_;
};

namespace {

// A row's place among the categories.
int64_t category_in(const std::vector<std::string>& categories, const CsvTable& table, int64_t row,
                    std::size_t column) {
  const std::string& text = table.rows[static_cast<std::size_t>(row)][column];
  const auto found = std::lower_bound(categories.begin(), categories.end(), text, ByNumberThenText());
  if (found != categories.end() && *found == text) return found - categories.begin();
  fail_value(table, row, table.columns[column],
             "found '" + text + "', expected one of the training rows' values: " + join(categories) +
                 "; correct it, or move the row to the training rows");
}

double number_in(const CsvTable& table, int64_t row, std::size_t column) {
  const std::string& text = table.rows[static_cast<std::size_t>(row)][column];
  if (const std::optional<double> number = finite_number(text)) return *number;
  fail_value(table, row, table.columns[column],
             text.empty() ? "found no value, expected a number; fill it in or leave the row out"
                          : "found '" + text + "', expected a number as in the other rows");
}

int64_t class_in(int64_t count, const CsvTable& table, int64_t row, std::size_t column) {
  const double number = number_in(table, row, column);
  if (number == std::floor(number) && number >= 0 && number < static_cast<double>(count)) {
    return static_cast<int64_t>(number);
  }
  fail_value(table, row, table.columns[column],
             c10::str("found ", number, ", expected one of the training rows' classes, 0 to ", count - 1));
}

}  // namespace

CsvDataset::CsvDataset(CsvOptions options) : options_(std::move(options)) {
  check_options(options_);
  const char separator = separator_of(options_);
  const CsvTable table = read_csv(options_.path, separator);
  encoding_ = options_.fit_on.empty() ? Fit(options_, table).encoding()
                                      : Fit(options_, read_csv(options_.fit_on, separator)).encoding();
  const std::vector<int64_t> rows = samples_of_split(
      std::ssize(table.rows), {options_.split, options_.val_fraction, options_.split_seed}, "[Csv] " + table.path);
  read_inputs(table, rows);
  if (!options_.target.empty()) read_targets(table, rows);
}

void CsvDataset::read_inputs(const CsvTable& table, const std::vector<int64_t>& rows) {
  int64_t width = 0;
  for (const Column& column : encoding_.features) width += std::max<int64_t>(1, std::ssize(column.categories));
  input_ = at::zeros({std::ssize(rows), width}, at::kFloat);
  float* out = input_.mutable_data_ptr<float>();
  for (const int64_t row : rows) {
    for (const Column& column : encoding_.features) {
      const std::size_t place = table.column(column.name);
      if (column.categories.empty()) {
        *out++ = static_cast<float>((number_in(table, row, place) - column.mean) / column.deviation);
      } else {
        out[category_in(column.categories, table, row, place)] = 1;
        out += column.categories.size();
      }
    }
  }
}

void CsvDataset::read_targets(const CsvTable& table, const std::vector<int64_t>& rows) {
  const std::size_t place = table.column(options_.target);
  const std::vector<std::string>& names = encoding_.target.categories;
  target_ = at::empty({std::ssize(rows)}, encoding_.is_class ? at::kLong : at::kFloat);
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const int64_t row = rows[static_cast<std::size_t>(i)];
    if (!encoding_.is_class) {
      target_.mutable_data_ptr<float>()[i] = static_cast<float>(number_in(table, row, place));
      continue;
    }
    int64_t& label = target_.mutable_data_ptr<int64_t>()[i];
    label = names.empty() ? class_in(encoding_.class_count, table, row, place) : category_in(names, table, row, place);
  }
}

Batch CsvDataset::get(const std::vector<int64_t>& indices) const {
  check_indices("Csv", indices, size());
  const at::Tensor index = at::empty({std::ssize(indices)}, at::kLong);
  std::copy(indices.begin(), indices.end(), index.mutable_data_ptr<int64_t>());
  Batch batch{{"input", at::index_select(input_, 0, index)}};
  if (!options_.target.empty()) batch.set("target", at::index_select(target_, 0, index));
  return batch;
}

void CsvDataset::check_fits(const Dataset& training) const {
  const auto* other = dynamic_cast<const CsvDataset*>(&training.source());
  if (other == nullptr || other->encoding_ == encoding_) return;
  throw ConfigError("[Csv] " + options_.path +
                    " takes means, deviations or categories of its columns from other rows " +
                    "than the training data; set fit_on: " + other->options_.path +
                    ", or the same path, val_fraction and split_seed as there");
}

}  // namespace duet
