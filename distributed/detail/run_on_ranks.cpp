#include <exception>
#include <string>
#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/detail/rank_error.h"

namespace duet {

void run_on_all_ranks(Communicator& ranks, const std::function<void()>& call) {
  std::exception_ptr error;
  try {
    call();
  } catch (const PeerError&) {
    throw;
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<std::string> all = ranks.all_gather(packed_error(error));
  if (error) std::rethrow_exception(error);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) throw_packed(packed_error_of(static_cast<int64_t>(rank), all[rank]));
  }
}

namespace {

// What rank 0 does alone, such as writing a large checkpoint, may take longer than a step.
class Patience {
 public:
  explicit Patience(Communicator& ranks) : ranks_(ranks) { ranks_.set_patient(true); }
  ~Patience() { ranks_.set_patient(false); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  Communicator& ranks_;
};

}  // namespace

void run_on_main(Communicator& ranks, const std::function<void()>& call) {
  const Patience patience(ranks);
  run_on_all_ranks(ranks, [&] {
    if (ranks.is_main()) call();
  });
}

}  // namespace duet
