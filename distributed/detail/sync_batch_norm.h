#pragma once

#include <optional>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include "distributed/communicator.h"

namespace duet {

// Of `input` [N, C, ...] by channel: the sum of its values, that of their squares, and last their number; float64
// [2 C + 1]. Added up over batches and ranks they are those of the whole.
at::Tensor moments_of(const at::Tensor& input);

// While it lives, aten::batch_norm in training takes its statistics over the batches of all ranks, forward and
// backward, as torch.nn.SyncBatchNorm: in the model's code, TorchScript, an exported graph and what backward computes
// again. It stands for convert_sync_batchnorm(model): no layer is exchanged, since a C++ model keeps its layers in
// members of their own type, whose forward is not virtual. All ranks call the same layers in the same order.
//
// It is made of operators: a step that is recorded while it lives contains the collectives. What normalizes otherwise
// in training (aten::native_batch_norm of a decomposed graph) throws ConfigError.
class SyncBatchNorm {
 public:
  // In a world of one that does not force its collectives it does nothing.
  explicit SyncBatchNorm(const Communicator& ranks);

 private:
  std::optional<c10::DebugInfoGuard> ranks_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_;
};

}  // namespace duet
