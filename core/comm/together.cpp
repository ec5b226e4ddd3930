#include <duet/core/comm/together.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <duet/core/checkpoint.h>
#include <duet/core/error.h>

#include <exception>
#include <string>

namespace duet {

namespace {

// What an error is to the other ranks: a letter for its type, and its text. Empty: there is none.
std::string described(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const SaveRefused& refused) {
    return std::string("r") + refused.what();
  } catch (const Error& other) {
    const char kinds[] = {'e', 'e', 'c', 'd', 'k'};
    const int code = other.exit_code();
    return std::string(1, code >= 0 && code < 5 ? kinds[code] : 'e') + other.what();
  } catch (const c10::Error& other) {
    return std::string("e") + other.what_without_backtrace();
  } catch (const std::exception& other) {
    return std::string("e") + other.what();
  } catch (...) {
    return "ean exception that is no std::exception";
  }
}

[[noreturn]] void throw_described(std::size_t rank, const std::string& described) {
  const std::string text = c10::str("on rank ", rank, ": ", described.substr(1));
  switch (described.front()) {
    case 'c':
      throw ConfigError(text);
    case 'd':
      throw DataError(text);
    case 'k':
      throw CheckpointError(text);
    case 'r':
      throw SaveRefused(text);
    default:
      throw Error(text, 1);
  }
}

}  // namespace

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
  const std::vector<std::string> all = communicator->all_gather(described(error));
  if (error) std::rethrow_exception(error);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) throw_described(rank, all[rank]);
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
