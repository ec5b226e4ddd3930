#include "metrics/detail/metric_output.h"
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

const at::Tensor& metric_output(const std::string& who, const NamedTensors& outputs, const std::string& name) {
  std::string known;
  for (const auto& [key, tensor] : outputs) {
    if (key == name && tensor.defined()) return tensor;
    known += (known.empty() ? "" : ", ") + key;
  }
  throw DataError(c10::str("[", who, "] found outputs ", known.empty() ? "none" : known, ", expected '", name,
                           "' among them; return it from Task::validation_step"));
}

}  // namespace duet
