#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace duet {

// One recorded step as it ran: every leaf ATen call with the memory it read and wrote.
//
// A value is a place in memory (storage, offset, sizes, strides, dtype) and never a TensorImpl: autograd unpacks saved
// tensors into new impls over the same storage, and a replay keyed by impl would read stale ones.
struct Tape {
  struct Storage {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;  // keeps the identity, not the memory: see OpRecorder
    c10::Storage strong;                             // set if the memory existed before the recording
    std::size_t bytes = 0;
    c10::Device device = c10::kCPU;
    bool external = false;  // not produced by a recorded op: parameters, inputs, state, constants
    int producer = -1;      // op that made it; -1 for external ones
    bool uninitialized = false;  // made by an empty-like op and not written by a recorded op since
  };

  struct Value {
    int storage = -1;
    int64_t offset = 0;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype = at::kFloat;
    at::Tensor original;  // external values: the tensor itself (wrapped numbers must stay such)
  };

  // An argument or result: a constant, one value, or a list of values (-1: none).
  struct Slot {
    enum class Kind { kConstant, kValue, kList, kOptionalList } kind = Kind::kConstant;
    c10::IValue constant;
    std::vector<int> values;
  };

  struct Op {
    c10::OperatorHandle handle;
    std::vector<Slot> arguments, results;
    std::vector<int> written;  // values changed in place
    bool random = false;
    bool grad_mode = false;     // some kernels ask for it (oneDNN's RNN keeps its workspace only for a backward)
  };

  std::vector<Storage> storages;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<std::size_t> split_points;  // indices into ops: host code ran before this op

  // The value that `tensor` is, or -1 if the tape never saw that place.
  int find(const at::Tensor& tensor) const;

  // What a run changes besides its own memory: the bytes of every tensor from outside that an op writes, and the
  // generators that it names.
  std::vector<at::Tensor> changed_outside() const;
  std::vector<at::Generator> generators() const;

  // Index from identity, filled by the recorder.
  std::unordered_map<const c10::StorageImpl*, int> storage_of;
  std::unordered_multimap<std::size_t, int> value_of;
};

// The arguments that the op changes although its schema does not say so: positions, usually none.
std::vector<std::size_t> hidden_writes(const c10::OperatorHandle& op);

// Whether the op only allocates: empty, empty_like, new_empty_strided, ...
bool is_empty_like(const c10::OperatorHandle& op);

std::size_t value_hash(int storage, const at::Tensor& tensor);
bool same_place(const Tape::Value& value, int storage, const at::Tensor& tensor);

}  // namespace duet
