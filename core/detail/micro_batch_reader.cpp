#include "core/detail/micro_batch_reader.h"
#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <utility>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/stopwatch.h"
#include "base/error.h"
#include "base/log.h"

namespace duet {

namespace {

template <class Is>
bool has_any(const Batch& batch, Is is) {
  return std::ranges::any_of(batch.items(), [&is](const auto& item) { return is(item.second); });
}

}  // namespace

// Written against c10's device-generic interface: no CUDA header, and the same code for any device with streams.
std::vector<Batch> DeviceCopy::to_device(std::vector<Batch> batches) {
  const auto is_from_host = [this](const at::Tensor& tensor) { return tensor.is_cpu() && !device_.is_cpu(); };
  const auto is_elsewhere = [&](const at::Tensor& t) { return t.device() != device_ && !is_from_host(t); };
  const auto copied = [this](const at::Tensor& t) { return t.to(device_, t.scalar_type(), /*non_blocking=*/true); };
  // A copy between two devices is ordered by their current streams, which LibTorch sees to.
  for (Batch& batch : batches) {
    if (!has_any(batch, is_elsewhere)) continue;
    batch = batch.mapped([&](const at::Tensor& tensor) { return is_elsewhere(tensor) ? copied(tensor) : tensor; });
  }
  if (std::ranges::none_of(batches, [&](const Batch& batch) { return has_any(batch, is_from_host); })) return batches;

  const c10::impl::VirtualGuardImpl device(device_.type());
  if (!stream_) stream_ = device.getStreamFromGlobalPool(device_);
  if (!done_) done_.emplace(device_.type());
  const c10::Stream current = device.getStream(device_);
  std::vector<at::Tensor> moved;
  {
    const c10::StreamGuard on_stream(*stream_);
    for (Batch& batch : batches) {
      batch = batch.mapped(
          [&](const at::Tensor& tensor) { return is_from_host(tensor) ? moved.emplace_back(copied(tensor)) : tensor; });
    }
  }
  done_->record(*stream_);
  done_->block(current);
  // The memory belongs to the copying stream: it must not be given out again while the current one still reads it.
  for (const at::Tensor& tensor : moved) device.recordDataPtrOnStream(tensor.storage().data_ptr(), current);
  return batches;
}

namespace {

void check_plain_data(const Batch& batch) {
  for (const auto& [name, tensor] : batch.items()) {
    if (!tensor.requires_grad()) continue;
    throw DataError("[BaseTrainer] batch tensor '" + name + "' requires a gradient, expected plain data; " +
                    "detach() it, and call requires_grad_() on a copy inside training_step if the loss needs that");
  }
}

}  // namespace

std::optional<Batch> next_batch(DataSource& data, const RunControl& control) {
  if (control.watchers.empty()) return data.next();
  data.set_should_stop([&control] {
    control.look();
    return control.is_interrupted();
  });
  const auto taken_back = c10::make_scope_exit([&data] { data.set_should_stop({}); });
  return data.next();
}

std::optional<MicroBatches> MicroBatchReader::read(DataSource& data, int64_t count, int64_t step,
                                                   const RunControl& control) {
  const Stopwatch time;
  std::vector<Batch> batches = collect(count, [&] { return next_batch(data, control); });
  if (static_cast<int64_t>(batches.size()) < count && control.is_interrupted()) return std::nullopt;
  seconds_ = time.seconds();
  return prepare(std::move(batches), step);
}

namespace {

// Whether two batches that are held at the same time have a tensor in one place.
bool share_memory(const std::vector<Batch>& batches) {
  std::unordered_map<const void*, const Batch*> users;
  for (const Batch& batch : batches) {
    for (const auto& [name, tensor] : batch.items()) {
      if (tensor.layout() != at::kStrided || tensor.numel() == 0) continue;
      if (users.try_emplace(tensor.const_data_ptr(), &batch).first->second != &batch) return true;
    }
  }
  return false;
}

// Of all of its tensors, so far, by PyTorch's own ops.
int64_t writes_to(const Batch& batch) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : batch.items()) sum += tensor.is_inference() ? 0 : tensor._version();
  return sum;
}

// Whether the first batches are still what they were when they were copied.
bool same_values(const std::vector<Batch>& copies, const std::vector<Batch>& batches) {
  return std::ranges::equal(copies, std::span(batches).first(copies.size()), [](const Batch& copy, const Batch& batch) {
    return differences(copy.items(), batch.items()).empty();
  });
}

// Tensors that are more than their values stay what they are.
Batch copy_of(const Batch& batch) {
  if (batch.structure() && !batch.structure()->special_tensor().empty()) return batch;
  return batch.mapped([](const at::Tensor& tensor) { return tensor.clone(); });
}

}  // namespace

std::vector<Batch> MicroBatchReader::collect(int64_t count, const std::function<std::optional<Batch>()>& next) {
  std::vector<Batch> batches, copies;
  std::vector<int64_t> writes;
  while (static_cast<int64_t>(batches.size()) < count) {
    if (!batches.empty()) writes.push_back(writes_to(batches.back()));
    if (!batches.empty() && may_reuse_memory_) copies.push_back(copy_of(batches.back()));
    std::optional<Batch> batch = next();
    if (!batch) break;
    batches.push_back(std::move(*batch));
  }
  // Two tensors that live at once lie in one place only if the source put them there.
  const bool shares = batches.size() > 1 && share_memory(batches);
  if (may_reuse_memory_ && batches.size() > 1) {
    may_reuse_memory_ = shares && !same_values(copies, batches);
    if (may_reuse_memory_) std::ranges::move(copies, batches.begin());
    return batches;
  }
  for (std::size_t i = 0; shares && i < writes.size(); ++i) {
    if (writes_to(batches[i]) != writes[i])
      throw DataError(
          "[BaseTrainer] the data source has filled the memory of a micro-batch again that the step still "
          "needs, after steps without that; let it give tensors of their own");
  }
  return batches;
}

MicroBatches MicroBatchReader::prepare(std::vector<Batch> batches, int64_t step) {
  MicroBatches prepared;
  for (Batch& batch : batches) {
    const double weight = weight_of(batch, step);
    check_plain_data(batch);
    if (weight == 0) {
      ++prepared.weightless;
      continue;
    }
    prepared.total += weight;
    prepared.weights.push_back(weight);
    prepared.batches.push_back(std::move(batch));
  }
  prepared.batches = copy_.to_device(std::move(prepared.batches));
  warn_of_weightless(prepared, step);
  return prepared;
}

double MicroBatchReader::weight_of(const Batch& batch, int64_t step) const {
  const double weight = task_.weight(batch);
  if (weight >= 0 && std::isfinite(weight)) return weight;
  throw DataError(c10::str("[BaseTrainer] a micro-batch of step ", step, " has weight ", weight,
                           ", expected a count >= 0; check Task::weight and the batch"));
}

void MicroBatchReader::warn_of_weightless(const MicroBatches& micro_batches, int64_t step) {
  if (micro_batches.weightless == 0 || std::exchange(warned_of_weightless_, true)) return;
  log_warning(
      c10::str("[BaseTrainer] ", micro_batches.weightless, " of the micro-batches of step ", step,
               " have weight 0 and are left out, as all others of this kind will be; this is said once. If that ",
               "is not meant, check Task::weight and the data"));
}

}  // namespace duet
