#include "hooks/detail/not_finite.h"
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/concat_text.h"
#include "base/device.h"
#include "core/task.h"
#include "hooks/detail/shared.h"
#include "io/safetensors.h"

namespace duet {

std::vector<WatchedTensor> watched_weights(const Task& task) {
  std::vector<WatchedTensor> watched;
  for (const auto& [name, parameter] : task.named_parameters()) {
    if (parameter.requires_grad()) watched.push_back({"weight", name, parameter});
  }
  for (const auto& [name, buffer] : task.named_buffers()) {
    watched.push_back({"buffer", name, buffer, /*may_be_infinite=*/true, /*of_this_rank=*/true});
  }
  return watched;
}

std::vector<WatchedTensor> watched_state(const Task& task, const StateDict& state) {
  constexpr std::string_view kOptimizer = "optimizer.", kHooks = "hooks.", kWeights = ".weights.";
  std::vector<WatchedTensor> watched = watched_weights(task);
  std::set<std::string> buffers;
  for (const auto& item : task.named_buffers()) buffers.insert(item.first);
  for (const auto& [name, tensor] : state.tensors()) {
    const std::size_t weights = name.starts_with(kHooks) ? name.find(kWeights) : std::string::npos;
    if (name.starts_with(kOptimizer)) {
      watched.push_back({"optimizer state", name.substr(kOptimizer.size()), tensor});
    } else if (weights != std::string::npos) {
      const bool of_buffer = buffers.contains(name.substr(weights + kWeights.size()));
      watched.push_back({"average", name.substr(kHooks.size()), tensor, of_buffer, of_buffer});
    }
  }
  return watched;
}

namespace {

// As real numbers that can be compared; undefined if there are none.
at::Tensor real_numbers(at::Tensor tensor) {
  if (!tensor.defined() || !(tensor.is_floating_point() || tensor.is_complex())) return {};
  tensor = tensor.detach();
  if (tensor.is_sparse()) tensor = tensor._values();
  if (tensor.is_complex()) tensor = at::view_as_real(tensor.resolve_conj());
  if (tensor.element_size() == 1) tensor = tensor.to(at::kFloat);
  return tensor.numel() > 0 ? tensor : at::Tensor();
}

}  // namespace

// The least and the greatest number say it in one pass without a copy: a NaN is both.
std::vector<WatchedTensor> not_finite(const std::vector<WatchedTensor>& watched) {
  const at::NoGradGuard no_grad;
  std::map<std::string, std::pair<std::vector<std::size_t>, std::vector<at::Tensor>>> by_device;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    const at::Tensor numbers = real_numbers(watched[i].tensor);
    if (!numbers.defined()) continue;
    auto& [indices, ends] = by_device[numbers.device().str()];
    const auto [least, greatest] = at::aminmax(numbers);
    indices.push_back(i);
    ends.insert(ends.end(), {least, greatest});
  }
  std::set<std::size_t> bad;
  for (const auto& item : by_device) {
    const auto& [indices, ends] = item.second;
    const at::Tensor all = at::stack(ends).to(at::kCPU, at::kDouble);
    const double* const numbers = all.const_data_ptr<double>();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const double least = numbers[2 * i], greatest = numbers[2 * i + 1];
      const bool is_fine =
          watched[indices[i]].may_be_infinite ? !std::isnan(greatest) : std::isfinite(least) && std::isfinite(greatest);
      if (!is_fine) bad.insert(indices[i]);
    }
  }
  std::vector<WatchedTensor> found;
  for (const std::size_t i : bad) found.push_back(watched[i]);
  return found;
}

std::string names_of(const std::vector<WatchedTensor>& found) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < found.size(); i = end) {
    while (end < found.size() && std::string_view(found[end].kind) == found[i].kind) ++end;
    text += text.empty() ? "" : ", ";
    text += end - i == 1 ? c10::str("the ", found[i].kind, " '", found[i].name, "'")
                         : c10::str(end - i, " ", found[i].kind, "s from '", found[i].name, "' on");
  }
  return text;
}

namespace {

StateDict live_tensors(const Task& task, bool weights = true) {
  StateDict live;
  if (weights) {
    for (const auto& [name, tensor] : task.named_parameters()) live.set("weight " + name, tensor.detach());
  }
  for (const auto& [name, tensor] : task.named_buffers()) live.set("buffer " + name, tensor.detach());
  return live;
}

// Of those that `to` has. What is the same needs no write, and an expanded buffer would refuse one.
void copy(const StateDict& from, const StateDict& to) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : to.tensors()) {
    if (from.has(name) && !same_bits(from.tensor(name), tensor)) tensor.copy_(from.tensor(name));
  }
}

// "; samples 17, 4 of the dataset".
std::string samples_text(const NonFiniteOp& found, const MicroBatches& micro_batches) {
  const std::vector<int64_t>& ids = micro_batches.batches[found.micro_batch].sample_ids();
  std::string text;
  for (const int64_t row : found.rows) {
    if (row < static_cast<int64_t>(ids.size())) text += c10::str(text.empty() ? "; samples " : ", ", ids[row]);
  }
  return text.empty() ? text : text + " of the dataset";
}

}  // namespace

void NonFiniteTrace::remember(const TrainContext& context, bool copies_weights) {
  micro_batches_ = *context.step.micro_batches;
  step_ = context.progress.step;
  tensors_ = copy_of(live_tensors(context.task, copies_weights));
  random_ = random_state();
}

std::string NonFiniteTrace::text(const TrainContext& context) const {
  const StateDict live = live_tensors(context.task);
  const StateDict after = copy_of(live);
  const StateDict random_after = random_state();
  const auto put_back = c10::make_scope_exit([&] {
    copy(after, live);
    set_random_state(random_after);
  });
  copy(tensors_, live);
  set_random_state(random_);
  const NonFiniteOp found = context.trainer.trace_non_finite(micro_batches_);
  if (found.text.empty()) return {};
  const std::string text = found.text + samples_text(found, micro_batches_);
  if (context.work_dir.empty()) return text;
  const std::string rank = rank_name(context);
  const std::filesystem::path path = std::filesystem::path(output_folder("NaNGuardHook", "", context, "non_finite")) /
                                     concat_text("step-", step_ + 1, rank.empty() ? "" : "-", rank, ".safetensors");
  NamedTensors tensors = found.tensors;
  for (const auto& [name, tensor] : micro_batches_.batches[found.micro_batch].items()) {
    tensors.emplace_back("batch." + name, tensor.detach().cpu().contiguous());
  }
  write_safetensors(path.string(), tensors, {{"op", found.op}, {"parameter", found.parameter}, {"found", text}});
  return text + "; its tensors and the batch are in " + path.string();
}

}  // namespace duet
