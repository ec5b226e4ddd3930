#pragma once

#include <functional>
#include "graph/kernels/bitexact_kernel.h"

namespace duet {

// Makes what does a call's work; empty if it cannot.
using MakeKernel = std::function<void()> (*)(const OpCall& call);

// Whether what `make` makes of a call like this one gives the bits that LibTorch's op gives: tried on memory of its own
// with numbers of all kinds, where tensors are large with their first rows. Once per process for each op, layout,
// scalars and settings.
bool has_atens_bits(const OpCall& call, MakeKernel make);

}  // namespace duet
