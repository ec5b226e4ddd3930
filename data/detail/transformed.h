#pragma once

#include <cstdint>
#include <vector>
#include "data/transform.h"

namespace duet {

// Samples (batches of one) through all transforms, as one batch. `indices` and `draws`, one for each, say what random
// ones draw; there is at least one. Throws as stacked() does.
Batch transformed(std::vector<Batch> samples, const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws,
                  const Transforms& transforms);
// What Transform::undo_for_show() makes of a batch that went through all of them.
Batch untransformed_for_show(Batch batch, const Transforms& transforms);

}  // namespace duet
