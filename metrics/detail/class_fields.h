#pragma once

#include <string>
#include "base/batch.h"
#include "base/options.h"

namespace duet {

// The output called `name`; throws DataError that begins with [who] and lists those there are.
const at::Tensor& metric_output(const std::string& who, const NamedTensors& outputs, const std::string& name);

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
