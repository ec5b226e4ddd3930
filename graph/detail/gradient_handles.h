#pragma once

#include <cstddef>
#include <functional>
#include <vector>
#include "base/batch.h"
#include "graph/record/step_program.h"

namespace duet {

// The gradients of a captured step as users get them: tensors of their own over the memory that each replay writes to.
class GradientHandles {
 public:
  bool empty() const { return handles_.empty(); }
  void clear() { handles_.clear(); }
  // `gradients`: of the captured step, by parameter, undefined where it gives none; `table`: of its recording.
  void make(const std::vector<at::Tensor>& gradients, const ValueTable& table);

  // What lies in `from` lies in `to` from here on.
  using MoveTensors = std::function<void(const c10::StorageImpl* from, const c10::Storage& to)>;
  // Before a replay.
  void leave_kept(const std::vector<at::Tensor>& gradients, const ValueTable& table, const MoveTensors& move_tensors);
  void hand_out(const NamedTensors& parameters) const;
  // The first parameter that has another gradient than the one that was handed out, or one over other memory, or none
  // any more; empty: there is none.
  std::string replaced(const NamedTensors& parameters, const std::vector<at::Tensor>& gradients) const;

 private:
  struct Handle {
    at::Tensor tensor{};
    std::size_t references = 0;  // to the memory, if nobody keeps it
    bool is_of_program = false;  // or it lies outside, in a bucket of several ranks, which the next step overwrites
  };
  std::vector<Handle> handles_;  // by parameter
};

}  // namespace duet
