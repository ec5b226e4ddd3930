#pragma once

#include <string>
#include "hooks/prediction_hooks.h"

namespace duet {

// "#ff8000"
bool is_colour(const std::string& text);

// Makes a picture of one sample, with a legend. Values in [0, 1] are shown as they are; where an image has others, its
// smallest is black and its largest white.
//   regions: predictions [N, C, H, W] or class numbers [N, H, W]. Image, ground truth, prediction side by side, classes
//   in their colours.
//   classes: predictions [N, C] or class numbers [N]. The image in a green frame if the class is right and a red one if
//   not; below it on the left the colour of the true class, on the right that of the predicted one.
// Without a target the picture shows the prediction alone. The painter throws ConfigError if there is no image or
// prediction of such a shape or if the target is no class (of a regression, say), DataError for a class without a
// colour. `options` are those of a hook that were checked.
VisualizationHookOptions::Painter sample_painter(const SamplePainterOptions& options = {});

}  // namespace duet
