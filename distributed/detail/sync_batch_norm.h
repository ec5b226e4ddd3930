#pragma once

#include <optional>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include "distributed/communicator.h"

namespace duet {

// While it lives, aten::batch_norm in training takes its statistics over the batches of all ranks, forward and
// backward, as torch.nn.SyncBatchNorm: in the model's code, in TorchScript, in an exported graph and in what backward
// computes again. No layer is exchanged, so that names and files of weights stay what they are; LibTorch's
// BatchNormImpl::forward is not virtual and could not be. All ranks call the same layers in the same order.
//
// It is plain code over tensors and operators: a step that is recorded while it lives contains the collectives.
// What normalizes otherwise in training (aten::native_batch_norm of a decomposed graph) throws ConfigError.
class SyncBatchNorm {
 public:
  // In a world of one that does not force its collectives it does nothing.
  explicit SyncBatchNorm(const Communicator& ranks);

 private:
  std::optional<c10::DebugInfoGuard> ranks_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_;
};

}  // namespace duet
