#include <duet/core/comm/together.h>

#include <duet/core/comm/rank_error.h>
#include <duet/core/error.h>

#include <exception>
#include <string>

namespace duet {

void together(Communicator* communicator, const std::function<void()>& call) {
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

// What rank 0 does alone, such as writing a large checkpoint, may take longer than an update.
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

void on_main(Communicator* communicator, const std::function<void()>& call) {
  const Patience patience(communicator);
  together(communicator, [&] {
    if (communicator == nullptr || communicator->is_main()) call();
  });
}

}  // namespace duet
