#pragma once

#include <memory>
#include "core/task.h"

namespace duet::benchmarks {

// Models of common kinds that neither the program nor examples/08_models has; benchmarks/peers/models.py has the same.
// Images are "image" and tokens "input", with int64 "target".
std::unique_ptr<Task> make_vit(int64_t width, int64_t layers);   // of 3x32x32 images in patches of 4
std::unique_ptr<Task> make_bert(int64_t width, int64_t layers);  // 1 000 tokens, sequences of 64

}  // namespace duet::benchmarks
