#include "distributed/detail/collective_ops.h"
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace duet {

namespace {

void run_start_sum(at::Tensor& values, int64_t communicator) { Communicator::find(communicator).start_sum(values); }

void run_start_broadcast(at::Tensor& values, int64_t communicator, int64_t root) {
  Communicator::find(communicator).start_broadcast(values, root);
}

void run_finish(at::Tensor& values, int64_t communicator) { Communicator::find(communicator).finish(values); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(duet, library) {
  library.def("start_sum_(Tensor(a!) values, int communicator) -> ()");
  library.def("start_broadcast_(Tensor(a!) values, int communicator, int root) -> ()");
  library.def("finish_(Tensor(a!) values, int communicator) -> ()");
  library.impl("start_sum_", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(run_start_sum)));
  library.impl("start_broadcast_",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(run_start_broadcast)));
  library.impl("finish_", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(run_finish)));
}

void start_sum_(at::Tensor& values, const Communicator& communicator) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("duet::start_sum_", "").typed<void(at::Tensor&, int64_t)>();
  op.call(values, communicator.id());
}

void start_broadcast_(at::Tensor& values, const Communicator& communicator, int64_t root) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("duet::start_broadcast_", "")
                             .typed<void(at::Tensor&, int64_t, int64_t)>();
  op.call(values, communicator.id(), root);
}

void finish_(at::Tensor& values, const Communicator& communicator) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("duet::finish_", "").typed<void(at::Tensor&, int64_t)>();
  op.call(values, communicator.id());
}

}  // namespace duet
