#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include "base/batch.h"
#include "base/detail/memory_range.h"
#include "base/detail/op_rules.h"
#include "core/detail/step_executor.h"
#include "graph/record/backward_pass.h"
#include "graph/record/thread_settings.h"

namespace duet {

// The memory that a recorded step touches.
//
// A value is a place in memory (storage, offset, sizes, strides, dtype) and never a TensorImpl: autograd unpacks saved
// tensors into new impls over the same storage, and a replay keyed by impl would read stale ones.
class ValueTable {
 public:
  struct Storage {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>>
        weak;             // keeps the identity, not the memory: see OpRecorder
    c10::Storage strong;  // set if the memory existed before the recording
    std::size_t bytes = 0;
    c10::Device device = c10::kCPU;
    bool external = false;    // not produced by a recorded op: parameters, inputs, state, constants
    int producer = -1;        // op that made it; -1 for external ones
    bool host = false;        // made on the host (see Op::on_host) and touched by nothing else so far
    bool input = false;       // external: a tensor of the batch
    bool local = false;       // external, and only the step itself refers to it: made below the dispatcher
    bool changes = false;     // external, and another tensor from step to step: what a step carries on to the next
    bool kept = false;        // made by the step or an input, and somebody refers to it after the step ...
    bool kept_by_op = false;  // ... or the op that gave it does: a cache of its own
    uint32_t version = 0;     // external: by how much a step moves the version of its tensors
    c10::Storage contents;    // what the host had made of it when a recorded op first used it: a constant of the step
  };

  // All that arithmetic looks at in a tensor but its memory.
  struct Layout {
    int storage = -1;
    int64_t offset = 0;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype = at::kFloat;
    bool conj = false, neg = false;  // lazily conjugated or negated
    bool wrapped = false;            // a number: it does not decide about a result's dtype
    auto operator<=>(const Layout&) const = default;
  };
  struct Value : Layout {
    at::Tensor original{};  // external values: the tensor itself
  };

  // Index of the tensor's storage, or -1 if it is not in the table.
  int find_storage(const at::Tensor& tensor) const;
  // Likewise, added if it is new: made by the op `producer`, or there before the recording (-1).
  int add_storage(const at::Tensor& tensor, int producer);
  // Index of the value that the tensor is, or -1 if the table has no such place.
  int find(const at::Tensor& tensor) const;
  // Likewise, added if it is new. With `keep` the table holds the tensor itself.
  int add(const at::Tensor& tensor, int storage, bool keep);

  // What the storage holds now was made on the host: a constant of the step.
  void make_constant(int storage);
  // What lies in the storage from outside lies in `memory` from here on, likewise.
  void move_external(int storage, const c10::Storage& memory);
  // The storage is written by its producer at every run after all.
  void make_internal(int storage);

  const std::vector<Storage>& storages() const { return storages_; }
  const std::vector<Value>& values() const { return values_; }
  Storage& storage(int index) { return storages_[index]; }
  const Storage& storage_of(int value) const { return storages_[values_[value].storage]; }
  // Whether nobody else holds the external storage or a tensor over it.
  bool alone_refers_to(int storage) const;
  bool made_by(std::size_t op, int value) const { return storage_of(value).producer == static_cast<int>(op); }

 private:
  std::vector<Storage> storages_;
  std::vector<Value> values_;
  std::unordered_map<const c10::StorageImpl*, int> storage_index_;
  std::map<Layout, int> value_index_;
};

// `storage`: its index in a table.
ValueTable::Layout place_of(const at::Tensor& tensor, int storage = -1);
// The tensor at that place in `memory`: whatever stands for another tensor is made by this.
at::Tensor tensor_at(const c10::Storage& memory, const ValueTable::Layout& layout);
// All of it, as a tensor of bytes.
at::Tensor bytes_of(const c10::Storage& memory);
// The part of memory in which the value lies.
MemoryRange range_of(const c10::Storage& memory, const ValueTable::Value& value);

// Of the model, in words: the parameter that was read last; empty if none was.
std::string place_after(const std::string& parameter);

// One recorded step as it ran: every leaf ATen call with the memory it read and wrote.
struct StepProgram {
  // An argument or result: a constant, one value, or a list of values (-1: none).
  struct Slot {
    enum class Kind { kConstant, kValue, kList, kOptionalList } kind = Kind::kConstant;
    c10::IValue constant;
    std::vector<int> values;
  };

  struct Call {
    c10::OperatorHandle handle;
    std::vector<Slot> arguments;
  };

  struct Op {
    c10::OperatorHandle handle;
    std::vector<Slot> arguments, results;
    std::vector<int> written;  // values changed in place
    bool random = false;
    ThreadSettings settings{};  // under which it ran
    // It makes a constant out of host numbers and other such constants alone (torch::tensor, zeros, arange). No run of
    // the program needs it: what the constant held is kept (Storage::contents).
    bool on_host = false;
    std::vector<int> constants{};       // storages of such constants that it uses
    std::optional<Call> recorded_as{};  // what the host called, if it is not what runs do
    bool copies_constant = false;       // that is what runs do, since an op changes the constant
    std::string place{};                // of the model: the parameter that was read last
  };

  // One tensor argument of an op.
  struct Place {
    std::size_t op;
    std::size_t argument;
    std::size_t item;  // of a list
    bool operator==(const Place&) const = default;
  };

  static constexpr const char* kOutside = "a tensor that is not part of the model";

  struct Split {
    SplitPoint point;
    std::size_t op;  // host code ran before this op
  };

  ValueTable table;
  std::optional<OpSettings> settings{};  // under which all of it ran; none: on a device, whose graphs hold them
  std::vector<Op> ops;
  std::vector<Split> splits;
  std::vector<BackwardPass> backward_passes{};  // those of LibTorch's own code alone
  std::vector<int> results{};                   // what it gives, in order; -1: nothing that an op has seen
  std::vector<std::size_t>
      reads{};  // ops whose value the host reads: a replay is right where it is the same (ReadGuard)

  // What a run changes besides its own memory: the bytes of every tensor from outside that an op writes, and the
  // generators that it names.
  NamedTensors changed_outside() const;
  // Where it does so.
  std::vector<std::pair<c10::Storage, MemoryRange>> written_ranges() const;
  // By storage: whether it is one of these.
  std::vector<bool> written_outside() const;
  std::vector<at::Generator> generators() const;
  // Backwards from the op `end`: marks the ops that make or change what lies in marked storages, and the storages that
  // marked ops read. Constants of the host are kept, whatever made them.
  void mark_needed(std::vector<bool>& of_ops, std::vector<bool>& of_storages, std::size_t end) const;
  // Whether the op lays other tensors over memory that is there, or another shape over a tensor's: the values after it
  // are those.
  bool is_view(std::size_t op) const;
  // Whether ops of it draw random numbers.
  bool draws() const { return std::ranges::any_of(ops, &Op::random); }
  // The tensors from outside that it reads, those of `known` left out: those of hooks, tasks and modules of which the
  // trainer does not know.
  NamedTensors unknown_outside(const NamedTensors& known) const;
  // The tensors from outside at these places are others from step to step, unless they are `own`.
  void mark_changing(const std::vector<Place>& places, const NamedTensors& own);
  bool reads_changing_tensors() const;
  // Whether a tensor that the step makes is kept by somebody: a module's member, a hook, a list.
  bool keeps_tensors() const;

 private:
  template <class Visit>
  void for_each_write_outside(Visit visit) const;
};

// What the slot stands for, with tensor_of(value) as its tensors.
template <class TensorOf>
c10::IValue slot_value(const StepProgram::Slot& slot, TensorOf tensor_of) {
  using Kind = StepProgram::Slot::Kind;
  switch (slot.kind) {
    case Kind::kConstant: return slot.constant;
    case Kind::kValue: return tensor_of(slot.values.front());
    case Kind::kList: {
      c10::List<at::Tensor> list;
      for (const int value : slot.values) list.push_back(tensor_of(value));
      return list;
    }
    case Kind::kOptionalList: {
      c10::List<std::optional<at::Tensor>> list;
      for (const int value : slot.values) list.push_back(value < 0 ? std::nullopt : std::optional(tensor_of(value)));
      return list;
    }
  }
  return {};
}

// Calls visit(value) for every value in the slots.
template <class Visit>
void for_each_value(const std::vector<StepProgram::Slot>& slots, Visit visit) {
  for (const StepProgram::Slot& slot : slots) {
    for (const int value : slot.values) {
      if (value >= 0) visit(value);
    }
  }
}

// Calls visit(value) for every value that the op changes.
template <class Visit>
void for_each_written(const StepProgram::Op& op, Visit visit) {
  for (const int value : op.written) {
    if (value >= 0) visit(value);
  }
  for (const std::size_t argument : hidden_writes(op.handle)) {
    for (const int value : op.arguments[argument].values) {
      if (value >= 0) visit(value);
    }
  }
}

// Of the heap, what a recording takes with its check and what replays it on a CPU, nearly. The memory that its values
// lie in is not in it.
int64_t heap_bytes_of(const StepProgram& program);

}  // namespace duet
