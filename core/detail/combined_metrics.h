#pragma once

#include <vector>
#include <c10/core/Device.h>

namespace duet {

class Communicator;
class Metric;

// What each rank has added becomes that of the whole evaluation, on all ranks. Throws ConfigError if the ranks' metrics
// differ.
void combine_over_ranks(const std::vector<Metric*>& metrics, Communicator& ranks, at::Device device);

}  // namespace duet
