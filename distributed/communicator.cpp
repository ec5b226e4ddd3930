#include "distributed/communicator.h"
#include <algorithm>
#include <mutex>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/error.h"

namespace duet {

namespace {

std::mutex table_mutex;

std::map<int64_t, Communicator*>& table() {
  static std::map<int64_t, Communicator*> communicators;
  return communicators;
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

void Communicator::keep() {
  live();
  mode_ = Mode::kKeep;
}

void Communicator::repeat() {
  mode_ = Mode::kRepeat;
  open_.clear();
  repeated_ = 0;
  repeated_exactly_ = true;
}

void Communicator::live() {
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
    repeated_exactly_ = repeated_exactly_ && same_bits(kept_[place].given, values);
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

}  // namespace duet
