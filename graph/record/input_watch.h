#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include "base/detail/memory_range.h"
#include "core/train_context.h"

namespace duet {

// The tensors of a step's batches while it is recorded. A recording reads copies of them: one that reads a batch after
// it has written to memory which that shares would read what was there before.
class InputWatch {
 public:
  // `lent`: the tensors that the step gets for `given`, each in a storage of its own. Gives their bytes.
  int64_t watch(const MicroBatches& lent, const MicroBatches& given);
  // What errors call these tensors from outside.
  void name_outside(const NamedTensors& tensors);

  bool is_input(const at::Tensor& tensor) const { return inputs_.contains(tensor.storage().unsafeGetStorageImpl()); }
  bool is_input(const c10::Storage& storage) const { return inputs_.contains(storage.unsafeGetStorageImpl()); }
  const std::string& name_of(const at::Tensor& input) const;
  // Puts the tensor that was given in the place of the argument where the op goes by places in its storage (as_strided,
  // set_): those of the lent one are others. Gives its name; empty: nothing was done.
  std::string give_storage_back(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  // An op writes to the tensor.
  void note_write(const std::string& op, const at::Tensor& written);
  // What has written to the input's memory by another name; empty: nothing, or the tensor is no input.
  std::string overwritten(const at::Tensor& tensor) const;

 private:
  struct Input {
    std::string name;
    MemoryRange memory;
    at::Tensor given;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // a reference would be one that somebody keeps
    std::string overwritten{};
  };
  std::unordered_map<const c10::StorageImpl*, Input> inputs_;
  std::vector<std::pair<std::string, MemoryRange>> outside_;
};

}  // namespace duet
