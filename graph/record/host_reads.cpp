#include "graph/record/host_reads.h"
#include <algorithm>
#include <c10/util/accumulate.h>
#include "base/detail/op_rules.h"

namespace duet {

namespace {

using Op = StepProgram::Op;
using Slot = StepProgram::Slot;

constexpr std::size_t kMaxReads = 64;

// What values depend on.
struct Slice {
  explicit Slice(const StepProgram& program) : ops(program.ops.size()), storages(program.table.storages().size()) {}

  void add(const Slice& other) {
    for (std::size_t i = 0; i < ops.size(); ++i) ops[i] = ops[i] || other.ops[i];
    for (std::size_t i = 0; i < storages.size(); ++i) storages[i] = storages[i] || other.storages[i];
  }

  std::vector<bool> ops, storages;
};

int64_t bytes_of(const ValueTable::Value& value) {
  return c10::multiply_integers(value.sizes) * static_cast<int64_t>(c10::elementSize(value.dtype));
}

// The bytes that it reads and writes: none for a view.
int64_t cost_of(const StepProgram& program, std::size_t index) {
  const Op& op = program.ops[index];
  bool computes = !op.written.empty();
  int64_t bytes = 0;
  const auto add = [&](int value) { bytes += bytes_of(program.table.values()[value]); };
  for_each_value(op.arguments, add);
  for_each_value(op.results, [&](int value) {
    computes = computes || program.table.made_by(index, value);
    add(value);
  });
  return computes && !op.on_host ? bytes : 0;
}

// Whether it does nothing but compute: it may run once more, on the CPU.
bool is_pure(const Op& op, const ValueTable& table) {
  bool pure = op.handle.schema().name().rfind("aten::", 0) == 0 && !op.random && hidden_writes(op.handle).empty();
  const auto look = [&](int value) {
    const ValueTable::Storage& storage = table.storage_of(value);
    pure = pure && storage.device.is_cpu() && !storage.kept_by_op;
  };
  for_each_value(op.arguments, look);
  for_each_value(op.results, look);
  return pure;
}

// What the slice writes outside is part of it as well.
bool reads_what_changed(const Slice& slice, const StepProgram& program) {
  const std::vector<bool> changed = program.written_outside();
  for (std::size_t s = 0; s < changed.size(); ++s) {
    if (slice.storages[s] && changed[s] && !program.table.storages()[s].contents) return true;
  }
  return false;
}

// The slices of all reads are run before each replay. More than this share of a step would cost more than replays save.
bool costs_little(const Slice& slice, const StepProgram& program, int64_t bytes_at_hand) {
  constexpr int64_t kShare = 4;
  int64_t of_slice = 0;
  int64_t of_all = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const int64_t cost = cost_of(program, i);
    of_all += cost;
    if (slice.ops[i]) of_slice += cost;
  }
  return kShare * of_slice <= std::max(of_all, bytes_at_hand);
}

// What the reads recorded so far depend on.
Slice slice_of_reads(const StepProgram& program) {
  Slice slice(program);
  for (std::size_t read = program.reads.size(); read-- > 0;) {
    Slice own(program);
    for_each_value(program.ops[program.reads[read]].arguments,
                   [&](int value) { own.storages[program.table.values()[value].storage] = true; });
    program.mark_needed(own.ops, own.storages, program.reads[read]);
    slice.add(own);
  }
  return slice;
}

}  // namespace

// Hooks at a split point may have changed whatever they like.
bool can_be_read_before(const StepProgram& program, const std::vector<at::Tensor>& read, int64_t bytes_at_hand) {
  if (!program.splits.empty() || program.reads.size() == kMaxReads) return false;
  Slice slice(program);
  for (const at::Tensor& tensor : read) {
    if (!is_plain(tensor) || !tensor.is_cpu()) return false;
    const int storage = program.table.find_storage(tensor);
    if (storage >= 0) slice.storages[storage] = true;
  }
  program.mark_needed(slice.ops, slice.storages, program.ops.size());
  for (std::size_t i = 0; i < slice.ops.size(); ++i) {
    if (slice.ops[i] && !is_pure(program.ops[i], program.table)) return false;
  }
  if (reads_what_changed(slice, program)) return false;
  slice.add(slice_of_reads(program));
  return costs_little(slice, program, bytes_at_hand);
}

ReadSlices slices_of_reads(const StepProgram& recording) {
  const Slice slice = slice_of_reads(recording);
  ReadSlices slices{recording, {}, slice.storages};
  slices.program.splits.clear();
  ValueTable& table = slices.program.table;
  for (std::size_t s = 0; s < table.storages().size(); ++s) table.storage(static_cast<int>(s)).kept = false;
  for (const std::size_t read : recording.reads) {
    slices.program.splits.push_back({SplitPoint::kAfterBackward, read});
    slices.reads.push_back(recording.ops[read]);
    for_each_value(recording.ops[read].arguments, [&](int value) {
      ValueTable::Storage& storage = table.storage(table.values()[value].storage);
      storage.kept = !storage.external;
    });
  }
  for (std::size_t i = 0; i < recording.ops.size(); ++i) {
    if (slice.ops[i]) continue;
    Op left_out{recording.ops[i].handle, {}, {}, {}};
    left_out.on_host = true;
    slices.program.ops[i] = std::move(left_out);
  }
  return slices;
}

std::optional<Obstacle> refused_read(const StepProgram& recording) {
  const Slice slice = slice_of_reads(recording);
  for (std::size_t s = 0; s < slice.storages.size(); ++s) {
    if (!slice.storages[s] || !recording.table.storages()[s].changes) continue;
    const Op& read = recording.ops[recording.reads.front()];
    const Obstacle obstacle = host_read_obstacle(full_name(read.handle));
    return Obstacle{obstacle.what + ", " + place_after(read.place), obstacle.way_out};
  }
  return std::nullopt;
}

}  // namespace duet
