#pragma once

#include <string>
#include "graph/detail/signature_cache.h"

namespace duet {

struct ReadChoice {
  SignatureEntry* entry;
  std::string gives_up{};  // why the entry is to run eager from now on; empty: it is not
};

// Which entry of a signature the step on `micro_batches` belongs to, by the values that its host code will read: a
// captured one that has read the same, one that is to be captured, or the one that runs eager for all other values.
ReadChoice choose_by_reads(SignatureCache& cache, SignatureVariants& entries, const MicroBatches& micro_batches);

}  // namespace duet
