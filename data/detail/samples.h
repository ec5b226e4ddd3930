#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "data/sampler.h"
#include "data/transform.h"

// Which samples a dataset takes, and how they become a batch.

namespace duet {

// Of the `count` indices that sampler.next() has just given, where its pass() was `pass` before. Throws ConfigError if
// its draws() are those of other indices.
std::vector<SampleDraw> draws_of(const Sampler& sampler, int64_t pass, std::size_t count);

// Samples (batches of one) as one batch. Throws DataError that names a tensor whose name, dtype or shape is not that of
// the first; `indices` are the samples' numbers for messages.
Batch stacked(const std::vector<Batch>& samples, const std::vector<int64_t>& indices);

// The same through all transforms. `indices` and `draws`, one for each, say what random ones draw; there is at least
// one.
Batch transformed(std::vector<Batch> samples, const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws,
                  const Transforms& transforms);
// What Transform::undo_for_show() makes of a batch that went through all of them.
Batch untransformed_for_show(Batch batch, const Transforms& transforms);

// Which samples a dataset takes. "train" and "val" are drawn by `seed`: val has round(size * val_fraction), train the
// others; "all" has all.
struct SplitRule {
  std::string split;
  double val_fraction = 0;
  int64_t seed = 0;
};

// Their numbers among `size`, ascending. Throws DataError, begun with `what`, if there is none.
std::vector<int64_t> samples_of_split(int64_t size, const SplitRule& rule, const std::string& what);

}  // namespace duet
