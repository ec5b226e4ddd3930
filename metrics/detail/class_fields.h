#pragma once

#include <algorithm>
#include <string>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/batch.h"
#include "base/error.h"
#include "base/options.h"

namespace duet {

// The output called `name`; throws DataError that begins with [who] and lists those there are.
const at::Tensor& metric_output(const std::string& who, const NamedTensors& outputs, const std::string& name);

// Throws DataError if there are `count` targets that are no class; `rest` ends its text, after what was expected.
void check_class_numbers(const std::string& who, const std::string& target, double count, int64_t classes,
                         const std::string& rest);

// Throws ConfigError for a list that is empty or names something twice.
template <class Value>
void check_each_once(const std::string& who, const std::string& field, const std::vector<Value>& values) {
  require<ConfigError>(!values.empty(), "[" + who + "] found no " + field + ", expected at least one; name one");
  for (const Value& value : values) {
    if (std::count(values.begin(), values.end(), value) == 1) continue;
    throw ConfigError(c10::str("[", who, "] found ", field, " ", value, " twice, expected each once; remove one"));
  }
}

// What all metrics over classes read.
template <class Options>
void add_inputs(const FieldAdder<Options>& add) {
  add("ignore_index", &Options::ignore_index, "targets of this number do not count");
  add("target", &Options::target, "tensor of the batch: class numbers");
  add("prediction", &Options::prediction, "tensor of the outputs: scores");
}

template <class Options>
void add_classes(const FieldAdder<Options>& add) {
  add("num_classes", &Options::num_classes, "how many classes there are").needed();
  add("class_names", &Options::class_names, "for tables and results per class; empty: 0, 1, ...");
  add_inputs(add);
}

}  // namespace duet
