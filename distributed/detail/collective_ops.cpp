#include "distributed/detail/collective_ops.h"
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace duet {

namespace {

template <class Call>
c10::TypedOperatorHandle<Call> operator_called(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Call>();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(duet, library) {
  constexpr auto kKey = c10::DispatchKey::CompositeExplicitAutograd;
  library.def("start_sum_(Tensor(a!) values, int communicator) -> ()");
  library.def("start_broadcast_(Tensor(a!) values, int communicator, int root) -> ()");
  library.def("finish_(Tensor(a!) values, int communicator) -> ()");
  library.impl("start_sum_", torch::dispatch(kKey, [](at::Tensor& values, int64_t communicator) {
                 Communicator::find(communicator).start_sum(values);
               }));
  library.impl("start_broadcast_", torch::dispatch(kKey, [](at::Tensor& values, int64_t communicator, int64_t root) {
                 Communicator::find(communicator).start_broadcast(values, root);
               }));
  library.impl("finish_", torch::dispatch(kKey, [](at::Tensor& values, int64_t communicator) {
                 Communicator::find(communicator).finish(values);
               }));
}

void start_sum_(at::Tensor& values, const Communicator& communicator) {
  static const auto op = operator_called<void(at::Tensor&, int64_t)>("duet::start_sum_");
  op.call(values, communicator.id());
}

void start_broadcast_(at::Tensor& values, const Communicator& communicator, int64_t root) {
  static const auto op = operator_called<void(at::Tensor&, int64_t, int64_t)>("duet::start_broadcast_");
  op.call(values, communicator.id(), root);
}

void finish_(at::Tensor& values, const Communicator& communicator) {
  static const auto op = operator_called<void(at::Tensor&, int64_t)>("duet::finish_");
  op.call(values, communicator.id());
}

}  // namespace duet
