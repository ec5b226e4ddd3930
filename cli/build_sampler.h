#pragma once

#include <cstdint>
#include <memory>
#include "cli/config/run_config.h"
#include "data/dataset.h"
#include "data/sampler.h"

namespace duet {

// What `sampler` and the keys beside it say: the order of all processes. Throws ConfigError for weights that are not
// those of the dataset.
std::unique_ptr<Sampler> build_sampler(const Dataset& dataset, const DataConfig& data, uint64_t seed);

}  // namespace duet
