#include "hooks/detail/non_finite_trace.h"
#include <filesystem>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/concat_text.h"
#include "base/device.h"
#include "core/task.h"
#include "hooks/detail/shared.h"
#include "io/safetensors.h"

namespace duet {

namespace {

StateDict live_tensors(const Task& task) {
  StateDict live;
  for (const auto& [name, tensor] : task.named_parameters()) live.set("weight " + name, tensor.detach());
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

StateDict copies_of(const StateDict& live, bool weights) {
  const at::NoGradGuard no_grad;
  StateDict copies;
  for (const auto& [name, tensor] : live.tensors()) {
    if (weights || name.rfind("buffer ", 0) == 0) copies.set(name, tensor.clone());
  }
  return copies;
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
  tensors_ = copies_of(live_tensors(context.task), copies_weights);
  random_ = random_state();
}

std::string NonFiniteTrace::text(const TrainContext& context) const {
  const StateDict live = live_tensors(context.task);
  const StateDict after = copies_of(live, /*weights=*/true);
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
