#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "data/detail/csv_values.h"
#include "data/detail/samples.h"
#include "data/file_dataset.h"
#include "io/csv.h"
#include "io/file_memory.h"

namespace duet {

namespace {

constexpr std::size_t kMaxClasses = 100;  // of whole numbers that task: auto takes for classes
constexpr std::size_t kMaxCategories = 1000;
constexpr std::size_t kFewRows = 20;  // of so few, most may be distinct by chance

std::vector<std::string> values_of(const CsvTable& table, std::size_t column, const std::vector<int64_t>& rows) {
  std::vector<std::string> values;
  for (const int64_t row : rows) values.push_back(table.rows[static_cast<std::size_t>(row)][column]);
  return values;
}

// YAML without quotes leaves a backslash and a t.
char separator_of(const CsvOptions& options) { return options.separator == "\\t" ? '\t' : options.separator.front(); }

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_columns(const CsvOptions& options) {
  using Option = std::pair<const char*, const std::vector<std::string>*>;
  for (const auto& [option, names] : {Option("features", &options.features), Option("target", &options.target),
                                      Option("categorical", &options.categorical)}) {
    std::set<std::string> seen;
    for (const std::string& name : *names) {
      const std::string found = std::string("[Csv] ") + option + " holds '" + name + "'";
      require<ConfigError>(seen.insert(name).second, found + " twice, expected each column once; leave one out");
      require<ConfigError>(names == &options.target || !holds(options.target, name),
                           found + ", the target, expected other columns; leave it out (of classes: set task)");
    }
  }
  for (const std::string& name : options.categorical) {
    require<ConfigError>(options.features.empty() || holds(options.features, name),
                         "[Csv] categorical holds '" + name +
                             "', expected columns among features: " + join(options.features) + "; add it there");
  }
  require<ConfigError>(options.target.size() < 2 || options.task != "classification",
                       "[Csv] task is classification with the targets " + join(options.target) +
                           ", expected one column of classes; name one, or leave task out");
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

}  // namespace

const OptionFields& CsvOptions::fields() {
  using O = CsvOptions;
  return described<O>("Csv", [](const auto& add) {
    add.about(
        "A table: gives input float32 [N, values], target int64 [N] (classes), float32 [N] (numbers) or float32 [N, "
        "targets] (several).");
    add("path", &O::path, "a table whose first line holds the columns' names").needed();
    add("target", &O::target, "the column to predict, or several of numbers; empty: none, or the training data's")
        .one_or_list();
    add("features", &O::features, "columns to predict from; empty: all others, or the training data's");
    add("categorical", &O::categorical, "columns that are categories, though their values may look like numbers");
    add("handle_unknown", &O::handle_unknown, "ignore: a category of a feature that no training row has is all zeros")
        .one_of({"error", "ignore"});
    add("weight", &O::weight,
        "column given as weight float32 [N], no feature: for sample_weights: weight; no loss reads it");
    add("separator", &O::separator, "between two fields");
    add("task", &O::task, "auto: texts and 0, 1, 2, ... are classes").one_of({"auto", "classification", "regression"});
    add("standardize", &O::standardize, "numbers to mean 0 and standard deviation 1, by the rows trained on");
    add("fit_on", &O::fit_on, "file whose rows give means, deviations, categories; empty: the training data, or path");
    add("split", &O::split, "all, or a part drawn by split_seed").one_of({"all", "train", "val"});
    add("val_fraction", &O::val_fraction, "share of the rows that is val").in(between(0, 1));
    add("split_seed", &O::split_seed, "which rows are val");
    add.rule([](const O& o) {
      require<ConfigError>(o.separator.size() == 1 || o.separator == "\\t",
                           "[Csv] separator is '" + o.separator + "', expected one character");
    });
    add.rule(check_columns);
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
    Encoding encoding{.targets = options_.target};
    const std::vector<std::string> names = feature_names();
    for (const std::string& name : options_.categorical) table_.column(name);
    for (const std::string& name : names) encoding.features.push_back(fitted(name));
    for (const std::string& name : options_.target) check_filled(name);
    if (options_.target.size() == 1) {
      find_classes(options_.target.front(), encoding);
    } else {
      for (const std::string& name : options_.target) {
        require<DataError>(holds_numbers(table_, rows_, name), "[Csv] " + table_.path + ": column '" + name +
                                                                   "': found texts, expected numbers, as there " +
                                                                   "are several targets (" + join(options_.target) +
                                                                   "); name one to predict its classes");
      }
    }
    return encoding;
  }

 private:
  std::vector<std::string> feature_names() const {
    if (!options_.features.empty()) return options_.features;
    std::vector<std::string> names;
    for (const std::string& name : table_.columns) {
      if (!holds(options_.target, name) && name != options_.weight) names.push_back(name);
    }
    require<DataError>(!names.empty(), "[Csv] " + table_.path + ": found no column beside the target");
    return names;
  }

  void check_filled(const std::string& name) const {
    const std::vector<std::string> values = values_of(table_, table_.column(name), rows_);
    const auto empty = std::find(values.begin(), values.end(), "");
    if (empty == values.end()) return;
    fail_value(table_, rows_[static_cast<std::size_t>(empty - values.begin())], name,
               "found no value, expected one to predict; fill it in or leave the row out");
  }

  void find_classes(const std::string& name, Encoding& encoding) const {
    const std::vector<std::string> values = values_of(table_, table_.column(name), rows_);
    const bool numbers = options_.task == "classification" || holds_numbers(table_, rows_, name);
    const bool classes = number_classes(values);
    encoding.is_class = options_.task == "classification" || (options_.task == "auto" && (!numbers || classes));
    if (encoding.is_class && !classes) {
      const ClassNames sorted(values.begin(), values.end());
      encoding.classes.assign(sorted.begin(), sorted.end());
    }
    encoding.class_count = static_cast<int64_t>(std::set<std::string>(values.begin(), values.end()).size());
  }

  // `come_back`: each of them in several rows, or the config says that they are categories.
  void check_categories(const std::string& name, std::size_t categories, bool come_back) const {
    if (categories <= kMaxCategories && come_back) return;
    throw DataError(c10::str("[Csv] ", table_.path, ": column '", one_line(name), "': found ", categories, " texts in ",
                             rows_.size(), " rows, expected at most ", kMaxCategories,
                             " categories, which come back in rows; is it an id? leave it out by features, or name up ",
                             "to as many in categorical"));
  }

  Column fitted(const std::string& name) const {
    const std::vector<std::string> values = values_of(table_, table_.column(name), rows_);
    Column column{.name = name};
    std::vector<std::string> given;
    std::copy_if(values.begin(), values.end(), std::back_inserter(given), [](const auto& v) { return !v.empty(); });
    const bool told = holds(options_.categorical, name);
    if (told || !holds_numbers(table_, rows_, name)) {
      const ClassNames sorted(given.begin(), given.end());
      check_categories(name, sorted.size(), told || given.size() <= kFewRows || 2 * sorted.size() <= given.size());
      column.categories.assign(sorted.begin(), sorted.end());
      return column;
    }
    if (!options_.standardize || given.empty()) return column;
    double sum = 0, squares = 0;
    for (const std::string& text : given) sum += *finite_number(text);
    column.mean = sum / static_cast<double>(given.size());
    for (const std::string& text : given) squares += std::pow(*finite_number(text) - column.mean, 2);
    column.deviation = std::sqrt(squares / static_cast<double>(given.size()));
    require<DataError>(std::isfinite(column.deviation),
                       "[Csv] " + table_.path + ": column '" + name + "': found numbers so large that their standard " +
                           "deviation overflows, expected some of at most 1e150; correct them, or scale the column");
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

// The numbers there, float32 [rows, names].
at::Tensor columns_of(const CsvTable& table, const std::vector<int64_t>& rows, const std::vector<std::string>& names) {
  const at::Tensor numbers = at::empty({std::ssize(rows), std::ssize(names)}, at::kFloat);
  float* out = numbers.mutable_data_ptr<float>();
  for (const int64_t row : rows) {
    for (const std::string& name : names) {
      const std::size_t place = table.column(name);
      *out++ = float_in(number_in(table, row, place), table, row, place);
    }
  }
  return numbers;
}

// Each category is a column of 0 and 1: that may be a thousand times the table.
at::Tensor zeros_for(const CsvTable& table, int64_t rows, int64_t width) {
  const uint64_t bytes = sizeof(float) * static_cast<uint64_t>(rows * width);
  const uint64_t most = file_memory(table.bytes, kCsvTimes);
  if (bytes <= most) return at::zeros({rows, width}, at::kFloat);
  throw DataError(c10::str("[Csv] ", table.path, ": found ", rows, " rows of ", width,
                           " values, one for each category, which take ", bytes, " bytes, expected at most ", most,
                           "; leave columns of many categories out by features, or ", kFileMemoryWayOut));
}

}  // namespace

CsvDataset::CsvDataset(CsvOptions options, const DatasetUse& use) : options_(std::move(options)) {
  check_options(options_);
  const std::optional<Encoding> kept = Encoding::of(use.encoding);
  is_kept_ = kept.has_value();
  if (kept && !use.reads) {
    adopt(*kept);
    input_ = at::zeros({0, width()}, at::kFloat);
    return;
  }
  const char separator = separator_of(options_);
  const CsvTable table = read_csv(options_.path, separator);
  const auto* training = use.training == nullptr ? nullptr : dynamic_cast<const CsvDataset*>(&use.training->source());
  if (!options_.fit_on.empty()) {
    encoding_ = Fit(options_, read_csv(options_.fit_on, separator)).encoding();
    if (kept) require_encoding(*kept, "the checkpoint was trained with; leave fit_on out to take that");
  } else if (kept || training != nullptr) {
    adopt(kept ? *kept : training->encoding_);
  } else {
    encoding_ = Fit(options_, table).encoding();
  }
  const std::vector<int64_t> rows = samples_of_split(
      std::ssize(table.rows), {options_.split, options_.val_fraction, options_.split_seed}, "[Csv] " + table.path);
  read_inputs(table, rows);
  if (has_targets(table, rows, use.predicts)) read_targets(table, rows);
  if (!options_.weight.empty()) weight_ = columns_of(table, rows, {options_.weight}).squeeze(1);
}

void CsvDataset::adopt(const Encoding& training) {
  encoding_ = training;
  std::vector<std::string> features = encoding_.names();
  for (const auto& [option, own, others] : {std::tuple("features", &options_.features, &features),
                                            std::tuple("target", &options_.target, &encoding_.targets)}) {
    if (own->empty() || *own == *others) continue;
    throw ConfigError("[Csv] " + options_.path + ": " + option + " is " + join(*own) + ", expected " + join(*others) +
                      " as in the training data; leave " + option + " out to take those");
  }
}

bool CsvDataset::has_targets(const CsvTable& table, const std::vector<int64_t>& rows, bool predicts) const {
  if (encoding_.targets.empty()) return false;
  if (!predicts) return true;
  return std::all_of(encoding_.targets.begin(), encoding_.targets.end(), [&](const std::string& name) {
    return holds(table.columns, name) && !holds(values_of(table, table.column(name), rows), "");
  });
}

int64_t CsvDataset::width() const {
  int64_t width = 0;
  for (const Column& column : encoding_.features) width += std::max<int64_t>(1, std::ssize(column.categories));
  return width;
}

void CsvDataset::read_inputs(const CsvTable& table, const std::vector<int64_t>& rows) {
  input_ = zeros_for(table, std::ssize(rows), width());
  float* out = input_.mutable_data_ptr<float>();
  for (const int64_t row : rows) {
    for (const Column& column : encoding_.features) {
      const std::size_t place = table.column(column.name);
      if (column.categories.empty()) {
        *out++ = float_in((number_in(table, row, place) - column.mean) / column.deviation, table, row, place);
      } else {
        const std::string& text = table.rows[static_cast<std::size_t>(row)][place];
        if (options_.handle_unknown == "error" || holds(column.categories, text)) {
          out[category_in(column.categories, table, row, place)] = 1;
        }
        out += column.categories.size();
      }
    }
  }
}

void CsvDataset::read_targets(const CsvTable& table, const std::vector<int64_t>& rows) {
  if (!encoding_.is_class) {
    target_ = columns_of(table, rows, encoding_.targets);
    if (encoding_.targets.size() == 1) target_ = target_.squeeze(1);
    return;
  }
  const std::size_t place = table.column(encoding_.targets.front());
  const std::vector<std::string>& names = encoding_.classes;
  target_ = at::empty({std::ssize(rows)}, at::kLong);
  int64_t* out = target_.mutable_data_ptr<int64_t>();
  for (const int64_t row : rows) {
    *out++ = names.empty() ? class_in(encoding_.class_count, table, row, place) : category_in(names, table, row, place);
  }
}

Batch CsvDataset::get(const std::vector<int64_t>& indices) const {
  check_indices("Csv", indices, size());
  const at::Tensor index = at::empty({std::ssize(indices)}, at::kLong);
  std::copy(indices.begin(), indices.end(), index.mutable_data_ptr<int64_t>());
  Batch batch{{"input", at::index_select(input_, 0, index)}};
  if (target_.defined()) batch.set("target", at::index_select(target_, 0, index));
  if (weight_.defined()) batch.set("weight", at::index_select(weight_, 0, index));
  return batch;
}

}  // namespace duet
