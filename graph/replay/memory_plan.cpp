#include "graph/replay/memory_plan.h"
#include <algorithm>
#include <memory>
#include <utility>
#include <c10/core/Allocator.h>
#include "graph/replay/arena.h"

namespace duet {

namespace {

constexpr std::size_t kAlignment = 64;  // as ATen's own allocations: kernels may give other bits on other alignments

class Planner {
 public:
  Planner(CpuProgramParts& parts, std::vector<StorageUse> uses)
      : parts_(parts), table_(parts.recording->table), uses_(std::move(uses)), block_of_(uses_.size(), kNone) {}

  void plan(const BitexactKernels& kernels) {
    const std::vector<std::size_t> source = taken_over();
    for (const auto& [first, last] : kernels.chains) keep_together(first, last);
    parts_.bytes = 0;
    for (std::size_t s = 0; s < uses_.size(); ++s) {
      if (lies_in_arena(s)) {
        add(s, source[s]);
      } else if (stays(s)) {
        parts_.bytes += static_cast<int64_t>(table_.storages()[s].bytes);
        if (!uses_[s].rebound) give_own_memory(s);
      }
    }
    for (const auto& [storage, first, last] : kernels.scratch) {
      owners_.emplace_back(storage, blocks_.size());
      blocks_.push_back({storage.nbytes(), op_of(first), op_of(last), 0});
    }
    const std::size_t bytes = plan_memory(blocks_, kAlignment);
    for (auto& [storage, block] : owners_) block = blocks_[block].offset;
    parts_.share = std::make_unique<Arena::Share>(parts_.arena, bytes, std::move(owners_));
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  bool is_given(std::size_t storage) const {
    return table_.storages()[storage].external && !table_.storages()[storage].changes;
  }
  bool stays(std::size_t storage) const {
    return !is_given(storage) && (parts_.persistent[storage] || table_.storages()[storage].changes);
  }
  bool lies_in_arena(std::size_t storage) const {
    return !is_given(storage) && !stays(storage) && !uses_[storage].rebound && !uses_[storage].is_none();
  }

  void give_own_memory(std::size_t storage) const {
    const c10::Storage& own = parts_.storages[storage];
    if (own.data() != nullptr) return;
    own.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::GetAllocator(c10::kCPU)->allocate(own.nbytes()));
  }

  std::size_t op_of(std::size_t instruction) const { return parts_.instructions[instruction].source; }

  // Instructions of which the first still runs while the last does.
  void keep_together(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i <= last; ++i) {
      const StepProgram::Op& op = parts_.recording->ops[op_of(i)];
      const auto stretch = [&](int value) {
        StorageUse& use = uses_[storage_of(value)];
        use.first = std::min(use.first, op_of(first));
        use.last = std::max(use.last, op_of(last));
      };
      for_each_value(op.arguments, stretch);
      for_each_value(op.results, stretch);
    }
  }

  // A block of its own, or that of the storage whose memory it takes over, which comes before it.
  void add(std::size_t storage, std::size_t source) {
    const auto [first, last, rebound] = uses_[storage];
    std::size_t& block = block_of_[storage];
    block = source == kNone ? blocks_.size() : block_of_[source];
    if (source == kNone) blocks_.push_back({parts_.storages[storage].nbytes(), first, last, 0});
    blocks_[block].last = std::max(blocks_[block].last, last);
    owners_.emplace_back(parts_.storages[storage], block);
  }

  // By storage, the one whose memory it takes over.
  std::vector<std::size_t> taken_over() const {
    std::vector<std::size_t> source(uses_.size(), kNone);
    for (const Instruction& instruction : parts_.instructions) {
      if (!overwrites_inputs(instruction)) continue;
      const StepProgram::Op& op = parts_.recording->ops[instruction.source];
      const int result = op.results.front().values.front();
      for_each_value(op.arguments, [&](int value) {
        if (can_take_over(op, instruction.source, result, value)) {
          source[storage_of(result)] = storage_of(value);
        }
      });
    }
    return source;
  }

  // Whether it may write its result over an input of the same layout.
  bool overwrites_inputs(const Instruction& instruction) const {
    const StepProgram::Op& op = parts_.recording->ops[instruction.source];
    const bool writes = instruction.kind == Instruction::Kind::kOut || instruction.kind == Instruction::Kind::kCopy;
    const bool elementwise = !instruction.kernel.run || instruction.kernel.elementwise;
    const bool is_atens = op.handle.schema().name().starts_with("aten::");  // whose tag can be relied on
    return writes && elementwise && is_atens && op.handle.hasTag(at::Tag::pointwise) && op.results.size() == 1 &&
           op.results.front().kind == StepProgram::Slot::Kind::kValue;
  }

  // Whether nobody reads the argument's memory later, nor this op in another order.
  bool can_take_over(const StepProgram::Op& op, std::size_t index, int result, int argument) const {
    const std::size_t from = storage_of(argument), to = storage_of(result);
    if (from >= to || !lies_in_arena(from) || !lies_in_arena(to)) return false;
    if (uses_[from].last != index || uses_[to].first != index) return false;
    if (parts_.storages[from].nbytes() != parts_.storages[to].nbytes()) return false;
    bool alike = true;
    for_each_value(op.arguments, [&](int other) {
      if (storage_of(other) == from) alike = alike && have_one_layout(other, result);
    });
    return alike;
  }
  std::size_t storage_of(int value) const { return static_cast<std::size_t>(table_.values()[value].storage); }
  bool have_one_layout(int value, int other) const {
    ValueTable::Layout a = table_.values()[value];
    const ValueTable::Layout& b = table_.values()[other];
    a.storage = b.storage;
    return a == b;
  }

  CpuProgramParts& parts_;
  const ValueTable& table_;
  std::vector<StorageUse> uses_;
  std::vector<std::size_t> block_of_;  // by storage
  std::vector<Block> blocks_;
  std::vector<std::pair<c10::Storage, std::size_t>> owners_;  // and their blocks
};

}  // namespace

void give_memory(CpuProgramParts& parts, const std::vector<StorageUse>& uses, const BitexactKernels& kernels) {
  Planner(parts, uses).plan(kernels);
}

}  // namespace duet
