#include "graph/replay/memory_plan.h"
#include "graph/replay/out_variants.h"
#include "graph/replay/step_program.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include "base/error.h"

#include <algorithm>

// How a tape becomes a program: what is needed, how each op runs, where its memory lies.

namespace duet {

namespace {

constexpr std::size_t kAlignment = 64;  // as ATen's own allocations: kernels may give other bits on other alignments

// Losses that reduce resize their output twice on the way, even to the shape it has already.
bool resizes_its_output(const c10::FunctionSchema& schema, const Tape::Value& result) {
  const bool reduces = std::any_of(schema.arguments().begin(), schema.arguments().end(),
                                   [](const c10::Argument& argument) { return argument.name() == "reduction"; });
  return reduces && result.sizes.empty() && schema.name().find("nll_loss") == std::string::npos;
}

template <class Visit>
void for_each_value(const std::vector<Tape::Slot>& slots, Visit visit) {
  for (const Tape::Slot& slot : slots) {
    for (const int value : slot.values) {
      if (value >= 0) visit(value);
    }
  }
}

}  // namespace

StepProgram::StepProgram(const Tape& tape, const std::vector<at::Tensor>& results, Fuse fuse) : tape_(tape) {
  for (const at::Tensor& result : results) {
    const int value = tape_.find(result);
    if (value >= 0) persistent_.insert(tape_.values[value].storage);
  }
  mark_needed();
  classify();
  make_memory(persistent_);
  make_tensors();
  std::size_t next_point = 0;
  for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
    while (next_point < tape_.split_points.size() && tape_.split_points[next_point] <= i) {
      segment_ends_.push_back(instructions_.size());
      ++next_point;
    }
    if (needed_[i] && !is_view(i) && !is_empty_like(tape_.ops[i].handle)) compile(i);
  }
  for (; next_point < tape_.split_points.size(); ++next_point) segment_ends_.push_back(instructions_.size());
  segment_ends_.push_back(instructions_.size());
  plan_releases(persistent_);
  if (fuse == Fuse::kExact) find_bitexact_kernels();
}

// Backwards from what must be readable, what lies outside the step, and random ops, which move the generator.
void StepProgram::mark_needed() {
  std::vector<bool> storage_needed(tape_.storages.size());
  for (std::size_t s = 0; s < tape_.storages.size(); ++s) {
    storage_needed[s] = tape_.storages[s].external || persistent_.count(static_cast<int>(s)) != 0;
  }
  needed_.assign(tape_.ops.size(), false);
  for (std::size_t i = tape_.ops.size(); i-- > 0;) {
    const Tape::Op& op = tape_.ops[i];
    bool needed = op.random || op.results.empty() || !hidden_writes(op.handle).empty();
    for (const int value : op.written) needed = needed || storage_needed[tape_.values[value].storage];
    for_each_value(op.results, [&](int value) {
      const int storage = tape_.values[value].storage;
      if (tape_.storages[storage].producer == static_cast<int>(i)) needed = needed || storage_needed[storage];
    });
    needed_[i] = needed;
    if (!needed) continue;
    for_each_value(op.arguments, [&](int value) { storage_needed[tape_.values[value].storage] = true; });
  }
}

bool StepProgram::is_view(std::size_t index) const {
  const Tape::Op& op = tape_.ops[index];
  if (op.handle.hasTag(at::Tag::inplace_view)) return true;  // the values after it have its new geometry
  if (!op.written.empty() || op.random || op.results.empty() || !hidden_writes(op.handle).empty()) return false;
  bool fresh = false;
  bool any = false;
  for_each_value(op.results, [&](int value) {
    any = true;
    fresh = fresh || tape_.storages[tape_.values[value].storage].producer == static_cast<int>(index);
  });
  return any && !fresh;
}

void StepProgram::classify() {
  kinds_.assign(tape_.ops.size(), Kind::kInPlace);
  use_.assign(tape_.storages.size(), {tape_.ops.size(), 0});
  for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
    const Tape::Op& op = tape_.ops[i];
    if (!needed_[i] || is_view(i)) continue;
    const auto touch = [&](int value) {
      auto& [first, last] = use_[tape_.values[value].storage];
      first = std::min(first, i);
      last = std::max(last, i);
    };
    for_each_value(op.arguments, touch);
    for_each_value(op.results, touch);
    int fresh = 0;
    int results = 0;
    for_each_value(op.results, [&](int value) {
      ++results;
      fresh += tape_.storages[tape_.values[value].storage].producer == static_cast<int>(i) ? 1 : 0;
    });
    if (fresh == 0) continue;
    bool plain = op.written.empty() && fresh == results && results == static_cast<int>(op.results.size());
    for_each_value(op.results, [&](int value) {
      plain = plain && !resizes_its_output(op.handle.schema(), tape_.values[value]);
    });
    kinds_[i] = plain && find_out_variant(op.handle, c10::DispatchKey::CPU) ? Kind::kOut : Kind::kRebind;
  }
}

// Memory that a run writes into: results that outlive it each in their own, the rest in one arena. What a rebinding op makes
// comes from that op.
void StepProgram::make_memory(const std::unordered_set<int>& persistent) {
  std::vector<Block> blocks;
  std::vector<int> owners;
  c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
  storages_.resize(tape_.storages.size());
  for (std::size_t s = 0; s < storages_.size(); ++s) {
    Tape::Storage& recorded = tape_.storages[s];
    if (recorded.external) {
      storages_[s] = recorded.strong;
      continue;
    }
    const bool rebinds = kinds_[recorded.producer] == Kind::kRebind && !is_empty_like(tape_.ops[recorded.producer].handle);
    const auto alive = recorded.weak->lock();
    if (alive && persistent.count(static_cast<int>(s)) != 0) {
      storages_[s] = c10::Storage(alive);
      bytes_ += static_cast<int64_t>(recorded.bytes);
      continue;
    }
    c10::DataPtr memory(nullptr, recorded.device);
    if (!rebinds && persistent.count(static_cast<int>(s)) != 0) memory = allocator->allocate(recorded.bytes);
    storages_[s] = c10::Storage(c10::Storage::use_byte_size_t(), recorded.bytes, std::move(memory), allocator, /*resizable=*/false);
    if (!rebinds && persistent.count(static_cast<int>(s)) == 0 && use_[s].first <= use_[s].second) {
      blocks.push_back({recorded.bytes, use_[s].first, use_[s].second, 0});
      owners.push_back(static_cast<int>(s));
    }
  }
  const std::size_t arena_bytes = plan_memory(blocks, kAlignment);
  arena_ = allocator->allocate(arena_bytes);
  bytes_ += static_cast<int64_t>(arena_bytes);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    char* address = static_cast<char*>(arena_.get()) + blocks[b].offset;
    storages_[owners[b]].unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(address, tape_.storages[owners[b]].device));
  }
}

void StepProgram::make_tensors() {
  for (const Tape::Value& value : tape_.values) {
    if (value.original.defined()) {
      tensors_.push_back(value.original);
      continue;
    }
    const at::TensorOptions options = at::TensorOptions().dtype(value.dtype).device(tape_.storages[value.storage].device);
    tensors_.push_back(at::empty({0}, options).set_(storages_[value.storage], value.offset, value.sizes, value.strides));
  }
}

c10::IValue StepProgram::argument_of(const Tape::Slot& slot) const {
  const auto tensor = [&](int value) { return value < 0 ? at::Tensor() : tensors_[value]; };
  switch (slot.kind) {
    case Tape::Slot::Kind::kConstant: return slot.constant;
    case Tape::Slot::Kind::kValue: return tensor(slot.values.front());
    case Tape::Slot::Kind::kList: {
      c10::List<at::Tensor> list;
      for (const int value : slot.values) list.push_back(tensor(value));
      return list;
    }
    case Tape::Slot::Kind::kOptionalList: {
      c10::List<std::optional<at::Tensor>> list;
      for (const int value : slot.values) list.push_back(value < 0 ? std::nullopt : std::optional<at::Tensor>(tensor(value)));
      return list;
    }
  }
  return {};
}

void StepProgram::compile(std::size_t index) {
  const Tape::Op& op = tape_.ops[index];
  Instruction instruction{kinds_[index], op.handle, {}, {}, op.grad_mode, {}, index, nullptr};
  for (const Tape::Slot& slot : op.arguments) instruction.arguments.push_back(argument_of(slot));
  if (instruction.kind == Kind::kOut) {
    instruction.op = *find_out_variant(op.handle, c10::DispatchKey::CPU);
    for (const Tape::Slot& slot : op.results) instruction.arguments.push_back(argument_of(slot));
  } else if (instruction.kind == Kind::kRebind) {
    int position = 0;
    std::vector<int> seen;
    for (const Tape::Slot& slot : op.results) {
      for (const int value : slot.values) {
        const int storage = value < 0 ? -1 : tape_.values[value].storage;
        const bool fresh = storage >= 0 && tape_.storages[storage].producer == static_cast<int>(index);
        if (fresh && std::find(seen.begin(), seen.end(), storage) == seen.end()) {
          instruction.rebinds.push_back({position, storage, value});
          seen.push_back(storage);
        }
        ++position;
      }
    }
  }
  instructions_.push_back(std::move(instruction));
}

void StepProgram::find_bitexact_kernels() {
  std::vector<KernelCall> calls;
  std::size_t segment = 0;
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    while (segment_ends_[segment] <= i) ++segment;
    calls.push_back({instructions_[i].op, instructions_[i].arguments, segment});
  }
  BitexactKernels found = find_exact_kernels(calls);
  for (std::size_t i = 0; i < instructions_.size(); ++i) instructions_[i].exact = std::move(found.of_call[i]);
  bytes_ += found.bytes;
  settings_ = kernel_settings();
}

// What a rebinding op made goes back to the allocator after its last use, as eager would free it.
void StepProgram::plan_releases(const std::unordered_set<int>& persistent) {
  std::vector<std::size_t> position(tape_.ops.size(), instructions_.size());
  for (std::size_t i = 0; i < instructions_.size(); ++i) position[instructions_[i].source] = i;
  for (std::size_t s = 0; s < tape_.storages.size(); ++s) {
    const Tape::Storage& storage = tape_.storages[s];
    if (storage.external || persistent.count(static_cast<int>(s)) != 0 || use_[s].first > use_[s].second) continue;
    if (kinds_[storage.producer] != Kind::kRebind || is_empty_like(tape_.ops[storage.producer].handle)) continue;
    const std::size_t last = position[use_[s].second];
    if (last < instructions_.size()) instructions_[last].releases.push_back(static_cast<int>(s));
  }
}

}  // namespace duet
