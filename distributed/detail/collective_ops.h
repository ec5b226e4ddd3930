#pragma once

#include <ATen/core/Tensor.h>
#include "distributed/communicator.h"

namespace duet {

// Collectives as tensor operators, so that a recorded step contains them: duet::start_sum_(Tensor(a!), int) and so
// on. See Communicator for what they do.
void start_sum_(at::Tensor& values, const Communicator& communicator);
void start_broadcast_(at::Tensor& values, const Communicator& communicator, int64_t root);
void finish_(at::Tensor& values, const Communicator& communicator);

}  // namespace duet
