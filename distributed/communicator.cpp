#include "distributed/communicator.h"
#include <algorithm>
#include <exception>
#include <mutex>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "distributed/detail/rank_error.h"

namespace duet {

namespace {

std::mutex table_mutex;

std::map<int64_t, Communicator*>& table() {
  static auto* const communicators = new std::map<int64_t, Communicator*>();  // outlives every static object
  return *communicators;
}

}  // namespace

Communicator::Communicator() {
  static int64_t next = 0;
  const std::lock_guard lock(table_mutex);
  id_ = next++;
  table()[id_] = this;
}

Communicator::~Communicator() {
  const std::lock_guard lock(table_mutex);
  table().erase(id_);
}

Communicator& Communicator::find(int64_t id) {
  const std::lock_guard lock(table_mutex);
  const auto found = table().find(id);
  if (found == table().end()) {
    throw ConfigError(c10::str("[Communicator] found no group of processes ", id,
                               ", expected the one that the step was made with; ",
                               "keep it alive as long as its trainers"));
  }
  return *found->second;
}

void Communicator::record_collectives() {
  resume_collectives();
  mode_ = Mode::kKeep;
}

void Communicator::replay_collectives() {
  mode_ = Mode::kRepeat;
  open_.clear();
  repeated_ = 0;
  repeated_exactly_ = true;
}

void Communicator::resume_collectives() {
  mode_ = Mode::kLive;
  repeated_ = 0;
  kept_.clear();
  open_.clear();
}

template <class Start>
void Communicator::start(const at::Tensor& values, Start start) {
  const std::size_t place = repeated_++;
  const bool known = mode_ == Mode::kRepeat && place < kept_.size();
  if (known) {
    const bool same = same_bits(kept_[place].given, values);
    if (!same) kept_[place].given = values.clone();  // each run is compared with the one before it
    repeated_exactly_ = repeated_exactly_ && same;
  } else {
    bytes_started_ += static_cast<int64_t>(values.nbytes());
    if (mode_ != Mode::kLive) kept_.push_back({values.clone(), {}});
    start();
  }
  if (mode_ != Mode::kLive) open_.emplace_back(values.const_data_ptr(), place);
}

void Communicator::start_sum(const at::Tensor& values) {
  start(values, [&] { do_start_sum(values); });
}

void Communicator::start_broadcast(const at::Tensor& values, int64_t root) {
  start(values, [&] { do_start_broadcast(values, root); });
}

void Communicator::finish(const at::Tensor& values) {
  if (mode_ == Mode::kLive) return do_finish(values);
  const at::NoGradGuard no_grad;
  const auto open =
      std::find_if(open_.begin(), open_.end(), [&](const auto& item) { return item.first == values.const_data_ptr(); });
  if (open == open_.end()) return;
  Kept& kept = kept_[open->second];
  open_.erase(open);
  if (kept.taken.defined()) {
    at::Tensor target = values;
    target.copy_(kept.taken);
  } else {  // of this run, or of one that failed in between
    do_finish(values);
    kept.taken = values.clone();
  }
}

namespace {

class OneProcess : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  bool is_single() const override { return true; }
  std::vector<std::string> all_gather(const std::string& bytes, bool /*of_one_size*/) override { return {bytes}; }
  std::string broadcast(const std::string& bytes, int64_t /*root*/) override { return bytes; }
  void report(int64_t /*step*/, const char* /*phase*/) override {}
  void fail(const std::string& /*reason*/) override {}

 protected:
  void do_start_sum(const at::Tensor& /*values*/) override {}
  void do_start_broadcast(const at::Tensor& /*values*/, int64_t /*root*/) override {}
  void do_finish(const at::Tensor& /*values*/) override {}
};

}  // namespace

std::shared_ptr<Communicator> one_process() {
  static const std::shared_ptr<Communicator> alone = std::make_shared<OneProcess>();
  return alone;
}

namespace {

struct ErrorType {
  char letter;
  bool (*is)(const Error& error);
  void (*raise)(const std::string& text);
};

template <class E>
constexpr ErrorType error_type(char letter) {
  return {letter, [](const Error& error) { return dynamic_cast<const E*>(&error) != nullptr; },
          [](const std::string& text) { throw E(text); }};
}

// All of base/error.h, a derived type before its base. What is none of them has the letter 'e'.
constexpr ErrorType kErrorTypes[] = {error_type<SaveRefused>('r'),   error_type<ConfigError>('c'),
                                     error_type<DataError>('d'),     error_type<CheckpointError>('k'),
                                     error_type<PeerError>('p'),     error_type<GraphError>('g'),
                                     error_type<NonFiniteError>('n')};

}  // namespace

std::string packed_error(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    for (const ErrorType& type : kErrorTypes) {
      if (type.is(found)) return type.letter + std::string(found.what());
    }
    return std::string("e") + found.what();
  } catch (...) {
    return "e" + text_of(error);
  }
}

std::string packed_error_of(int64_t rank, const std::string& packed) {
  return c10::str(packed.front(), "on rank ", rank, ": ", packed.substr(1));
}

void throw_packed(const std::string& packed, int exit_code) {
  const std::string text = packed.substr(1);
  for (const ErrorType& type : kErrorTypes) {
    if (type.letter == packed.front()) type.raise(text);
  }
  throw Error(text, exit_code);
}

namespace {

// The ranks that all know of the error on its way here: the call around this one need not tell them again, nor may it,
// where one of them had failed before it came to this one.
thread_local const Communicator* all_know = nullptr;

}  // namespace

void run_on_all_ranks(Communicator& ranks, const std::function<void()>& call) {
  std::exception_ptr error;
  all_know = nullptr;
  try {
    call();
  } catch (const PeerError&) {
    throw;
  } catch (...) {
    error = std::current_exception();
  }
  if (error && all_know == &ranks) std::rethrow_exception(error);
  const std::vector<std::string> all = ranks.all_gather(packed_error(error));
  const auto failed = std::find_if(all.begin(), all.end(), [](const std::string& packed) { return !packed.empty(); });
  if (failed == all.end()) return;
  all_know = &ranks;
  if (error) std::rethrow_exception(error);
  throw_packed(packed_error_of(failed - all.begin(), *failed));
}

void run_on_main(Communicator& ranks, const std::function<void()>& call) {
  ranks.use_start_timeout(true);
  const auto impatient = c10::make_scope_exit([&] { ranks.use_start_timeout(false); });
  run_on_all_ranks(ranks, [&] {
    if (!ranks.is_main()) return;
    ranks.announce_main_work();
    call();
  });
}

}  // namespace duet
