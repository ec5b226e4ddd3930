#include "distributed/detail/same_model.h"
#include <algorithm>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "base/log.h"
#include "distributed/detail/each_element_once.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

namespace {

void check_same_layout(const NamedTensors& tensors, Communicator& communicator) {
  std::string own;
  for (const auto& [name, tensor] : tensors) {
    own +=
        c10::str(name, " ", tensor.scalar_type(), " ", tensor.sizes(), tensor.requires_grad() ? "" : " (frozen)", "\n");
  }
  check_same_on_all_ranks<ConfigError>(communicator, own, [](const RankDifference& found) {
    return c10::str("[Distributed] rank ", found.rank, " has another model than rank 0: its first other parameter or ",
                    "buffer is ", found.there, ", rank 0 has ", found.on_first,
                    ", expected the same model everywhere; make it from the same code and config");
  });
}

}  // namespace

void make_same_model(const NamedTensors& tensors, Communicator& communicator) {
  check_same_layout(tensors, communicator);
  const at::NoGradGuard no_grad;
  std::string own;
  for (const auto& item : tensors) own += bits_hash(item.second) + "\n";
  const std::vector<std::string> all = communicator.all_gather(own);
  if (std::all_of(all.begin(), all.end(), [&](const std::string& rank) { return rank == all.front(); })) return;
  for (const auto& item : tensors) {
    at::Tensor live = each_element_once(item.second.detach());
    if (live.numel() == 0) continue;
    const at::Tensor values = live.contiguous().clone();
    const at::Tensor bytes = values.view({-1}).view(at::kByte);
    communicator.start_broadcast(bytes, 0);
    communicator.finish(bytes);
    live.copy_(values);
  }
  if (communicator.is_main()) {
    log_warning(
        "[Distributed] the ranks' models start from different values; those of rank 0 are used everywhere. Seed every "
        "rank alike, or load the same weights");
  }
}

}  // namespace duet
