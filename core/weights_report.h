#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "../base/state_dict.h"

namespace duet {

class Task;

// How weights fit a model: by name, shape and type.
struct WeightsReport {
  struct Difference {
    std::string name;
    std::string found, expected;  // "Float[3, 5]"
  };

  int64_t loaded = 0;                   // tensors of the model that have a value there
  int64_t expected = 0;                 // that the model has
  std::vector<std::string> missing;     // of the model, not there; BatchNorm's num_batches_tracked is not missed
  std::vector<std::string> unexpected;  // there, not of the model
  std::vector<Difference> mismatched;   // another shape, or integers for floating point numbers: not loaded
  std::vector<std::string> untied;      // further names of tied tensors, with another value there: not loaded
  std::vector<Difference> converted;    // loaded from another floating-point type

  // Every tensor has its counterpart, of the same shape and type.
  bool exact() const {
    return missing.empty() && unexpected.empty() && mismatched.empty() && untied.empty() && converted.empty();
  }
  // "10 of 12 tensors" and a line per kind of difference with up to `max_names` names each.
  std::string text(size_t max_names = 8) const;
};

// Compares alone.
WeightsReport match_weights(const Task& task, const StateDict& weights);

// Copies into the task's parameters and buffers whatever fits. Throws CheckpointError with the report if nothing does,
// or with `strict` if the report is not exact; then nothing has changed.
WeightsReport load_matching_weights(Task& task, const StateDict& weights, bool strict = false);

}  // namespace duet
