#pragma once

#include <string>
#include "base/batch.h"

namespace duet {

// The output called `name`; throws DataError that begins with [who] and lists those there are.
const at::Tensor& metric_output(const std::string& who, const NamedTensors& outputs, const std::string& name);

}  // namespace duet
