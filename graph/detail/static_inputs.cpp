#include "graph/detail/static_inputs.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include "base/detail/op_rules.h"

namespace duet {

namespace {

constexpr int64_t kAlignment = 64;  // of ATen's own allocations

// The memory that the tensor spans, gaps included: it may be expanded, and then it cannot be written as it is.
at::Tensor span_of(const at::Tensor& tensor) {
  const auto elements = static_cast<int64_t>(MemoryRange::elements_spanned(tensor.sizes(), tensor.strides()));
  return tensor.detach().as_strided({elements}, {1});
}

// A tensor like `tensor` over the memory at `address`, which `owner` keeps alive.
at::Tensor tensor_over(void* address, const at::Tensor& owner, const at::Tensor& tensor) {
  c10::DataPtr memory(
      address, new at::Tensor(owner), [](void* kept) { delete static_cast<at::Tensor*>(kept); }, tensor.device());
  const c10::Storage storage(c10::Storage::use_byte_size_t(), span_of(tensor).nbytes(), std::move(memory), nullptr,
                             /*resizable=*/false);
  ValueTable::Layout layout = place_of(tensor);
  layout.offset = 0;
  return tensor_at(storage, layout);
}

at::Tensor empty_aligned_as(const at::Tensor& tensor) {
  const int64_t misalignment = StaticInputs::misalignment(tensor);
  const at::TensorOptions options = tensor.options().requires_grad(false);
  if (misalignment == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  const auto bytes = static_cast<int64_t>(span_of(tensor).nbytes());
  const at::Tensor block = at::empty({bytes + kAlignment}, options.dtype(at::kByte));
  return tensor_over(block.mutable_data_ptr<uint8_t>() + misalignment, block, tensor);
}

// A storage over the tensor's memory that keeps it alive.
at::Tensor over_same_memory(const at::Tensor& tensor) {
  return tensor_over(span_of(tensor).mutable_data_ptr(), tensor, tensor);
}

// Each tensor as `make` makes it; one under two names stays one.
MicroBatches mapped(MicroBatches micro_batches, const std::function<at::Tensor(const at::Tensor&)>& make) {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> known;
  for (Batch& batch : micro_batches.batches) {
    batch = batch.mapped([&](const at::Tensor& tensor) {
      at::Tensor& made = known[tensor.unsafeGetTensorImpl()];
      if (!made.defined()) made = make(tensor);
      return made;
    });
  }
  return micro_batches;
}

// Calls visit(own, other) for each tensor of the two, which have the same layout.
template <class Visit>
void for_each_pair(const MicroBatches& own, const MicroBatches& others, Visit visit) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // plain data
  for (std::size_t b = 0; b < own.batches.size(); ++b) {
    const NamedTensors& left = own.batches[b].items();
    for (std::size_t i = 0; i < left.size(); ++i) visit(left[i].second, others.batches[b].items()[i].second);
  }
}

}  // namespace

StaticInputs::StaticInputs(const MicroBatches& example) : micro_batches_(mapped(example, empty_aligned_as)) {}

std::string StaticInputs::first_unsupported_input(const MicroBatches& micro_batches) {
  for (const Batch& batch : micro_batches.batches) {
    if (batch.structure() != nullptr && !batch.structure()->special_tensor().empty()) {
      return batch.structure()->special_tensor();
    }
    for (const auto& [name, tensor] : batch.items()) {
      if (!is_plain(tensor)) return name;
    }
  }
  return {};
}

int64_t StaticInputs::misalignment(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return 0;
  return static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kAlignment);
}

MicroBatches StaticInputs::lend(const MicroBatches& micro_batches) {
  const at::NoGradGuard no_grad;
  return mapped(micro_batches, over_same_memory);
}

void StaticInputs::find_in(const ValueTable& table, const MicroBatches& lent) {
  storages_.clear();
  for_each_pair(micro_batches_, lent, [&](const at::Tensor& /*own*/, const at::Tensor& tensor) {
    storages_.push_back(table.find_storage(tensor));
  });
}

void StaticInputs::take_place_in(ValueTable& table) const {
  for_each_lent(micro_batches_, [&](int storage, const at::Tensor& own) {
    if (storage >= 0) table.move_external(storage, own.storage());
  });
}

bool StaticInputs::let_go(MicroBatches& lent) const {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> unused;
  for_each_lent(lent, [&](int storage, const at::Tensor& tensor) {
    if (storage < 0 && tensor.has_storage()) unused.push_back(tensor.storage().getWeakStorageImpl());
  });
  lent = {};
  return std::ranges::any_of(unused, [](const auto& storage) { return storage.use_count() > 0; });
}

void StaticInputs::for_each_lent(const MicroBatches& lent,
                                 const std::function<void(int, const at::Tensor&)>& visit) const {
  std::size_t next = 0;
  for_each_pair(micro_batches_, lent,
                [&](const at::Tensor& /*own*/, const at::Tensor& tensor) { visit(storages_[next++], tensor); });
}

void StaticInputs::fill(const MicroBatches& micro_batches) {
  for_each_pair(micro_batches_, micro_batches, [](const at::Tensor& target, const at::Tensor& source) {
    if (source.numel() == 0) return;
    if (source.is_cpu() && source.is_contiguous()) {  // small batches: a dispatched copy costs more than the bytes
      std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
    } else if (source.is_non_overlapping_and_dense()) {
      target.copy_(source, /*non_blocking=*/true);
    } else {
      span_of(target).copy_(span_of(source), /*non_blocking=*/true);
    }
  });
}

int64_t StaticInputs::bytes() const {
  int64_t total = 0;
  for (const Batch& batch : micro_batches_.batches) {
    for (const auto& item : batch.items()) total += static_cast<int64_t>(item.second.nbytes());
  }
  return total;
}

}  // namespace duet
