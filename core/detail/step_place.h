#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include "base/batch.h"
#include "core/detail/step_executor.h"

namespace duet {

// A run of a step's code, for errors.
struct StepPlace {
  const char* what;  // "train step", "validation batch"
  int64_t number;
  const StepCode& code;
  std::span<const Batch> batches;
};

// Throws an error of an op, or one that a task throws in its place (StepError), as an error that says where it came:
// the place, the op where LibTorch or a replay names it, the batch, and the way out. Any other error is thrown as it
// is, and so is one that hardware or other ranks are to blame for.
[[noreturn]] void rethrow_at(const StepPlace& place, const std::exception_ptr& error);

// What `call`, which runs that code, returns.
template <class Call>
auto with_place(const StepPlace& place, const Call& call) {
  try {
    return call();
  } catch (...) {
    rethrow_at(place, std::current_exception());
  }
}

}  // namespace duet
