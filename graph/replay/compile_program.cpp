#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>
#include <ATen/TensorGeometry.h>
#include <c10/core/Allocator.h>
#include "base/detail/op_rules.h"
#include "graph/replay/cpu_program.h"
#include "graph/replay/memory_plan.h"

namespace duet {

namespace {

using Kind = Instruction::Kind;
using Slot = StepProgram::Slot;

const std::vector<c10::OperatorName>& overloads_of(const std::string& name) {
  static const auto* by_name = [] {
    auto* map = new std::unordered_map<std::string, std::vector<c10::OperatorName>>();
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) (*map)[op.name].push_back(op);
    return map;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto found = by_name->find(name);
  return found == by_name->end() ? none : found->second;
}

bool is_out_variant_of(const c10::FunctionSchema& candidate, const c10::FunctionSchema& base) {
  const auto& arguments = candidate.arguments();
  const std::size_t inputs = base.arguments().size();
  if (arguments.size() != inputs + base.returns().size()) return false;
  for (std::size_t i = 0; i < inputs; ++i) {
    if (arguments[i].name() != base.arguments()[i].name() || *arguments[i].type() != *base.arguments()[i].type())
      return false;
    if (arguments[i].alias_info() != nullptr) return false;
  }
  for (std::size_t i = inputs; i < arguments.size(); ++i) {
    if (!writes(arguments[i]) || arguments[i].type()->kind() != c10::TypeKind::TensorType) return false;
  }
  return true;
}

// The overload of `op` that writes into given tensors, if the CPU has a kernel of its own for it: the same
// arguments, then one output per result. Generated overloads, which compute and copy, do not count; that of stack is
// none, though it is for all devices.
std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& op) {
  for (const auto& result : op.schema().returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType || result.alias_info() != nullptr) return std::nullopt;
  }
  if (op.schema().returns().empty()) return std::nullopt;
  for (const c10::OperatorName& name : overloads_of(op.schema().name())) {
    const auto candidate = c10::Dispatcher::singleton().findSchema(name);
    if (!candidate || !candidate->hasSchema() || !is_out_variant_of(candidate->schema(), op.schema())) continue;
    if (candidate->hasKernelForDispatchKey(c10::DispatchKey::CPU) || name.name == "aten::stack") return candidate;
  }
  return std::nullopt;
}

// Losses that reduce resize their output twice on the way, even to the shape it has already.
bool resizes_its_output(const c10::FunctionSchema& schema, const ValueTable::Value& result) {
  const bool reduces = std::any_of(schema.arguments().begin(), schema.arguments().end(),
                                   [](const c10::Argument& argument) { return argument.name() == "reduction"; });
  return reduces && result.sizes.empty() && schema.name().find("nll_loss") == std::string::npos;
}

// native_batch_norm.out of LibTorch 2.11 adds the statistics of other inputs to what its outputs held before.
bool adds_to_its_outputs(const StepProgram::Op& op, const ValueTable& table) {
  if (op.handle.schema().name() != "aten::native_batch_norm") return false;
  const ValueTable::Value& input = table.values()[op.arguments.front().values.front()];
  return !at::geometry_is_contiguous(input.sizes, input.strides);
}

// An index out of range is an error of the data, also where nobody reads the result.
bool checks_indices(const StepProgram::Op& op, const ValueTable& table) {
  const auto& arguments = op.handle.schema().arguments();
  const auto is_index = [&](int value) {
    return value >= 0 && c10::isIntegralType(table.values()[value].dtype, /*includeBool=*/true);
  };
  for (std::size_t k = 0; k < op.arguments.size(); ++k) {
    const std::string& name = arguments[k].name();
    const bool may_be_one = name == "index" || name == "indices" || name == "target";
    if (may_be_one && std::ranges::any_of(op.arguments[k].values, is_index)) return true;
  }
  return false;
}

// What is needed of a recording, how each op runs, where its memory lies.
class Builder {
 public:
  explicit Builder(CpuProgramParts& parts) : parts_(parts) {
    mark_needed();
    parts_.needed_ops = std::count(needed_.begin(), needed_.end(), true);
    choose_kinds();
    find_lifetimes();
  }

  void build() {
    make_storages();
    make_tensors();
    compile_all();
    finish(/*may_try=*/false);
  }

  // Of a program that is made: kernels are looked for, which changes what memory it needs.
  void finish(bool may_try) {
    BitexactKernels kernels;
    if (!parts_.passes.empty()) kernels = find_kernels(may_try);
    for (std::size_t s = 0; s < use_.size(); ++s) use_[s].rebound = is_rebound(s);
    give_memory(parts_, use_, kernels);
    plan_releases();
  }

 private:
  bool outlives_run(std::size_t storage) const { return parts_.persistent[storage]; }

  // Backwards from what must be readable, what lies outside the step, random ops, which move the generator, and ops
  // that check what they are given.
  void mark_needed() {
    std::vector<bool> storage_needed(table_.storages().size());
    for (std::size_t s = 0; s < storage_needed.size(); ++s) {
      storage_needed[s] = table_.storages()[s].external || outlives_run(s);
    }
    for (const StepProgram::Op& op : ops_) {
      const bool is_kept = op.on_host && !op.copies_constant;
      const bool acts = op.random || op.results.empty() || !hidden_writes(op.handle).empty();
      needed_.push_back(!is_kept && (acts || checks_indices(op, table_)));
    }
    recording_.mark_needed(needed_, storage_needed, ops_.size());
  }

  bool allocates_only(std::size_t op) const { return is_empty_like(ops_[op].handle); }

  void choose_kinds() {
    kinds_.assign(ops_.size(), Kind::kInPlace);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (needed_[i] && !recording_.is_view(i)) kinds_[i] = kind_of(i);
    }
  }

  Kind kind_of(std::size_t index) const {
    const StepProgram::Op& op = ops_[index];
    std::size_t fresh = 0;
    std::size_t results = 0;
    bool needs_own_outputs = false;
    for_each_value(op.results, [&](int value) {
      ++results;
      fresh += table_.made_by(index, value) ? 1 : 0;
      needs_own_outputs = needs_own_outputs || resizes_its_output(op.handle.schema(), table_.values()[value]);
    });
    if (fresh == 0) return Kind::kInPlace;
    needs_own_outputs = needs_own_outputs || adds_to_its_outputs(op, table_);
    const bool plain = op.written.empty() && fresh == results && results == op.results.size() && !needs_own_outputs;
    return plain && find_out_variant(op.handle) ? Kind::kOut : Kind::kRebind;
  }

  void find_lifetimes() {
    use_.assign(table_.storages().size(), {ops_.size(), 0});
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (!needed_[i] || recording_.is_view(i)) continue;
      const auto touch = [&](int value) {
        StorageUse& use = use_[table_.values()[value].storage];
        use.first = std::min(use.first, i);
        use.last = std::max(use.last, i);
      };
      for_each_value(ops_[i].arguments, touch);
      for_each_value(ops_[i].results, touch);
    }
  }

  void make_storages() {
    for (std::size_t s = 0; s < table_.storages().size(); ++s) {
      const ValueTable::Storage& recorded = table_.storages()[s];
      if (recorded.external && !recorded.changes) {
        parts_.storages.push_back(recorded.strong);
      } else {
        parts_.storages.push_back(storage_without_memory(recorded.bytes, recorded.device));
      }
    }
  }

  // Whether the storage's memory comes from the op that makes it, at each run.
  bool is_rebound(std::size_t storage) const {
    const ValueTable::Storage& recorded = table_.storages()[storage];
    return !recorded.external && kinds_[recorded.producer] == Kind::kRebind && !allocates_only(recorded.producer);
  }

  void make_tensors() {
    for (const ValueTable::Value& value : table_.values()) {
      const bool is_original = value.original.defined() && !table_.storages()[value.storage].changes;
      const auto storage = static_cast<std::size_t>(value.storage);
      if (!table_.storages()[storage].external && !outlives_run(storage) && use_[storage].is_none()) {
        parts_.tensors.emplace_back();  // a program that is a small part of its recording
        continue;
      }
      parts_.tensors.push_back(is_original ? value.original : tensor_at(parts_.storages[value.storage], value));
    }
  }

  void compile_all() {
    auto split = parts_.recording->splits.begin();
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      for (; split != parts_.recording->splits.end() && split->op <= i; ++split) {
        parts_.segment_ends.push_back(parts_.instructions.size());
      }
      if (needed_[i] && !recording_.is_view(i) && !allocates_only(i)) compile(i);
    }
    // Splits behind the last op, and the end of the last segment.
    parts_.segment_ends.resize(parts_.recording->splits.size() + 1, parts_.instructions.size());
  }

  void compile(std::size_t index) {
    const StepProgram::Op& op = ops_[index];
    Instruction instruction{kinds_[index], op.handle, {}, {}, op.settings, {}, index, {}};
    for (const Slot& slot : op.arguments) instruction.arguments.push_back(argument_of(slot));
    if (instruction.kind == Kind::kOut) {
      instruction.op = *find_out_variant(op.handle);
      for (const Slot& slot : op.results) instruction.arguments.push_back(argument_of(slot));
    } else if (instruction.kind == Kind::kRebind) {
      instruction.rebinds = rebinds_of(index);
    }
    if (instruction.kind != Kind::kRebind) instruction.unboxed = unboxed_call(instruction.op);
    parts_.instructions.push_back(std::move(instruction));
  }

  // The first result over each storage that the op makes.
  std::vector<Instruction::Rebind> rebinds_of(std::size_t index) const {
    std::vector<Instruction::Rebind> rebinds;
    int position = 0;
    for (const Slot& slot : ops_[index].results) {
      for (const int value : slot.values) {
        const int storage = value < 0 ? -1 : table_.values()[value].storage;
        const bool seen = std::any_of(rebinds.begin(), rebinds.end(),
                                      [storage](const Instruction::Rebind& other) { return other.storage == storage; });
        if (storage >= 0 && table_.made_by(index, value) && !seen) rebinds.push_back({position, storage, value});
        ++position;
      }
    }
    return rebinds;
  }

  c10::IValue argument_of(const Slot& slot) const {
    return slot_value(slot, [this](int value) { return value < 0 ? at::Tensor() : parts_.tensors[value]; });
  }

  // What a rebinding op made goes back to the allocator after its last use, as eager would free it.
  void plan_releases() {
    std::vector<Instruction>& instructions = parts_.instructions;
    std::vector<std::size_t> position(ops_.size(), instructions.size());
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      position[instructions[i].source] = i;
      instructions[i].releases.clear();
    }
    for (std::size_t s = 0; s < table_.storages().size(); ++s) {
      if (!use_[s].rebound || outlives_run(s) || use_[s].is_none()) continue;
      const std::size_t last = position[use_[s].last];
      if (last < instructions.size()) instructions[last].releases.push_back(static_cast<int>(s));
    }
  }

  BitexactKernels find_kernels(bool may_try) {
    std::vector<OpCall> calls;
    std::size_t segment = 0;
    for (std::size_t i = 0; i < parts_.instructions.size(); ++i) {
      const Instruction& instruction = parts_.instructions[i];
      while (parts_.segment_ends[segment] <= i) ++segment;
      calls.push_back({instruction.op, instruction.arguments, segment, results_of(instruction.source),
                       grad_mode(instruction.settings)});
    }
    BitexactKernels found =
        find_bitexact_kernels(calls, parts_.passes, {.may_try = may_try, .may_chain = external_storages_are_apart()});
    parts_.kernel_count = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      Instruction& instruction = parts_.instructions[i];
      instruction.kind = kinds_[instruction.source];
      instruction.kernel = std::move(found.of_call[i]);
      const bool is_first = instruction.kernel.together < 0 || instruction.kernel.together == static_cast<int64_t>(i);
      instruction.kernel_number = is_first ? parts_.kernel_count : number_of(instruction.kernel.together);
      if (instruction.kernel.run && is_first) ++parts_.kernel_count;
      // A kernel allocates nothing: what the op would make is planned for it.
      const bool copies = instruction.kernel.run && instruction.kind == Kind::kRebind;
      if (copies) instruction.kind = kinds_[instruction.source] = Kind::kCopy;
    }
    parts_.untried = found.untried;
    parts_.settings = kernel_settings();
    return found;
  }

  // Two may lie in the same memory, such as tensors made from one NumPy array.
  bool external_storages_are_apart() const {
    std::vector<MemoryRange> ranges;
    for (std::size_t s = 0; s < table_.storages().size(); ++s) {
      if (table_.storages()[s].external) ranges.push_back(MemoryRange::of(parts_.storages[s]));
    }
    std::ranges::sort(ranges);
    return std::ranges::adjacent_find(
               ranges, [](const MemoryRange& a, const MemoryRange& b) { return a.overlaps(b); }) == ranges.end();
  }

  int64_t number_of(std::ptrdiff_t instruction) const { return parts_.instructions[instruction].kernel_number; }

  std::vector<at::Tensor> results_of(std::size_t index) const {
    std::vector<at::Tensor> results;
    for (const Slot& slot : ops_[index].results) {
      const int value = slot.kind == Slot::Kind::kValue ? slot.values.front() : -1;
      results.push_back(value < 0 ? at::Tensor() : parts_.tensors[value]);
    }
    return results;
  }

  CpuProgramParts& parts_;
  const StepProgram& recording_ = *parts_.recording;
  const std::vector<StepProgram::Op>& ops_ = recording_.ops;
  const ValueTable& table_ = recording_.table;
  std::vector<bool> needed_;              // by op
  std::vector<Instruction::Kind> kinds_;  // by op
  std::vector<StorageUse> use_;           // by storage
};

}  // namespace

void CpuProgram::build(std::shared_ptr<const StepProgram> recording, const std::vector<at::Tensor>& results) {
  const ValueTable& table = recording->table;
  parts_.heap_bytes = heap_bytes_of(*recording);
  parts_.recording = std::move(recording);
  for (const ValueTable::Storage& storage : table.storages()) parts_.persistent.push_back(storage.kept);
  for (const at::Tensor& result : results) {
    if (const int value = table.find(result); value >= 0) parts_.persistent[table.values()[value].storage] = true;
  }
  Builder(parts_).build();
}

void CpuProgram::try_kernels() { Builder(parts_).finish(/*may_try=*/true); }

}  // namespace duet
