#pragma once

#include <string>

namespace duet {

class Task;

// Sizes of a model and of its top-level parts, for people:
//
//   model: 421642 parameters (1.6 MiB), 421642 trainable, 128 values in buffers
//     stem     Conv2d         320
//     head     Linear       1290  frozen
std::string model_summary(const Task& task);

}  // namespace duet
