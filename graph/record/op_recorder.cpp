#include "graph/record/op_recorder.h"
#include "base/error.h"

namespace duet {

void OpRecorder::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (paused_ || (!failure().empty() && !tells_all())) {
    op.redispatchBoxed(below, stack);
    return;
  }
  Call call = before(op, *stack);
  op.redispatchBoxed(below, stack);
  after(std::move(call), *stack);
}

void OpRecorder::record(const std::function<void()>& step) {
  try {
    step();
  } catch (const GraphError&) {
    throw;
  } catch (const std::exception&) {
    throw_if_refused();
    throw;
  }
}

}  // namespace duet
