#pragma once

#include <cstdint>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

// Runs the model. On the CPU LibTorch finds labels and tokens out of range; the same op may not look in another mode.
// Private to the trainer.
template <class Call>
auto with_checked_indices(const char* what, int64_t number, Call call) {
  try {
    return call();
  } catch (const c10::IndexError& error) {
    throw DataError(c10::str("[BaseTrainer] in ", what, " ", number, ": ", error.what_without_backtrace(),
                             " Expected labels and tokens that the model has a place for; correct the data, or the "
                             "model's num_classes or vocab_size"));
  }
}

}  // namespace duet
