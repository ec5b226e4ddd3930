#include "checkpoint/detail/load_transaction.h"
#include <exception>
#include <string>
#include "base/log.h"

namespace duet {

namespace {

// A state_dict() lends live tensors, which the load is about to change.
StateDict copy_of(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, tensor] : state.tensors()) copy.set(name, tensor.detach().clone());
  for (const auto& [name, value] : state.values()) copy.set(name, value);
  return copy;
}

}  // namespace

LoadTransaction::~LoadTransaction() {
  for (auto it = loaded_.rbegin(); it != loaded_.rend(); ++it) {
    try {
      it->part->load_state_dict(it->before);
    } catch (const std::exception& error) {  // a part that refuses what it gave itself
      log_error(std::string("[LoadTransaction] a part cannot take back its own state: ") + error.what());
    }
  }
}

void LoadTransaction::load(Stateful& part, const StateDict& state) {
  // Noted first: a part that fails half way gets back what it had, too.
  loaded_.push_back({&part, copy_of(part.state_dict())});
  part.load_state_dict(state);
}

}  // namespace duet
