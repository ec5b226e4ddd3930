#include "distributed/run_on_ranks.h"

#include "distributed/detail/rank_error.h"
#include "base/error.h"

#include <exception>
#include <string>

namespace duet {

void run_on_all_ranks(Communicator* communicator, const std::function<void()>& call) {
  if (communicator == nullptr) return call();
  std::exception_ptr error;
  try {
    call();
  } catch (const PeerError&) {
    throw;
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<std::string> all = communicator->all_gather(packed_error(error));
  if (error) std::rethrow_exception(error);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) throw_error_of(static_cast<int64_t>(rank), all[rank]);
  }
}

namespace {

// What rank 0 does alone, such as writing a large checkpoint, may take longer than a step.
class Patience {
 public:
  explicit Patience(Communicator* communicator) : communicator_(communicator) {
    if (communicator_) communicator_->set_patient(true);
  }
  ~Patience() {
    if (communicator_) communicator_->set_patient(false);
  }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  Communicator* communicator_;
};

}  // namespace

void run_on_main(Communicator* communicator, const std::function<void()>& call) {
  const Patience patience(communicator);
  run_on_all_ranks(communicator, [&] {
    if (communicator == nullptr || communicator->is_main()) call();
  });
}

}  // namespace duet
