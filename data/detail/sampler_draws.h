#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>
#include "data/sampler.h"

namespace duet {

// Of the `count` indices that sampler.next() has just given, where its pass() was `pass` before. Throws ConfigError if
// its draws() are those of other indices.
std::vector<SampleDraw> draws_of(const Sampler& sampler, int64_t pass, std::size_t count);

}  // namespace duet
