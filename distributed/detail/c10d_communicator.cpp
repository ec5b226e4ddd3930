#include "distributed/detail/c10d_communicator.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"

namespace duet {

namespace {

// What goes on here is no part of a step that is being recorded, nor of autograd.
struct PlainCalls {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_recorder{c10::DispatchKey::Fake};
};

// It is known why the group has failed: no need to wait any longer.
struct GroupIsOver {};

constexpr std::chrono::milliseconds kLookUp{100};

enum class CallKind : int64_t { kOfOneSize, kTexts, kBroadcast };

// The connections of a group that is over. Their destructors would wait for calls that others never come to.
void leave_behind(const c10::intrusive_ptr<c10d::Backend>& backend) {
  static std::mutex mutex;
  static auto* const left = new std::vector<c10::intrusive_ptr<c10d::Backend>>();
  const std::lock_guard lock(mutex);
  left->push_back(backend);
}

}  // namespace

// A graph on the device that waits for a lost rank would never end, nor would this process, which frees its memory.
// NCCL's abort ends the waits at once, but returns only when all graphs that were captured with its connections are
// gone, which the caller's own trainer holds: so it runs in a thread that nobody waits for as long as that one lives.
struct C10dCommunicator::DeviceEnd {
  explicit DeviceEnd(c10::intrusive_ptr<c10d::Backend> device) : backend(std::move(device)) {}

  static void start(const std::shared_ptr<DeviceEnd>& end) {
    if (end->started.exchange(true)) return;
    std::thread([end] {
      try {
        end->backend->abort();
      } catch (const std::exception& error) {
        log_warning("[Communicator] the device's connections could not be closed (" + first_line(error) + ")");
      }
      end->done.set_value();
    }).detach();
  }

  void wait(std::chrono::seconds most) {
    if (started) done.get_future().wait_for(most);
  }

  c10::intrusive_ptr<c10d::Backend> backend;
  std::atomic<bool> started{false};
  std::promise<void> done;
};

C10dCommunicator::C10dCommunicator(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Backend> device,
                                   std::unique_ptr<PeerWatch> watch, CommunicatorTimeouts timeouts, at::Device place)
    : rank_(host->getRank()),
      world_size_(host->getSize()),
      place_(place),
      host_(std::move(host)),
      device_(std::move(device)),
      device_waits_on_host_(device_->getBackendName() == "gloo"),
      watch_(std::move(watch)),
      timeouts_(timeouts) {
  if (!watch_) return;
  // Patience is for a rank that works: one that is stopped is found after the shorter timeout in every phase.
  std::function<void()> end_waits = [] {};
  if (!device_waits_on_host_) {
    device_end_ = std::make_shared<DeviceEnd>(device_);
    end_waits = [end = device_end_] { DeviceEnd::start(end); };
  }
  watch_->watch_for_waits(std::move(end_waits), timeouts_.running);
}

C10dCommunicator::~C10dCommunicator() {
  const auto is_open = [](const auto& item) { return !item.second->isCompleted(); };
  if (device_waits_on_host_ && failure_.empty() && std::any_of(open_.begin(), open_.end(), is_open)) {
    fail("it gave up its communicator in the middle of a step");
  }
  if (device_end_) device_end_->wait(std::chrono::seconds(3));  // the graphs are gone by now
}

template <class Call>
auto C10dCommunicator::guarded(Call call) -> decltype(call()) {
  if (!failure_.empty()) throw PeerError(failure_);
  std::string error;
  try {
    if (!watch_ || !watch_->over()) {
      const PlainCalls plain;
      return call();
    }
  } catch (const GroupIsOver&) {
  } catch (const std::exception& found) {
    error = first_line(found);
  }
  failure_ = watch_ ? watch_->diagnose(error) : "[Communicator] a call that waits for other ranks failed: " + error;
  abandon();
  throw PeerError(failure_);
}

// Looks up every now and then: the rank that this one waits for may itself wait for the one that is lost. What rank 0
// takes for its work does not count.
void C10dCommunicator::wait(const c10::intrusive_ptr<c10d::Work>& work) {
  if (!work) return;
  if (watch_) watch_->set_working(false);
  std::chrono::steady_clock::duration waited{0};
  auto looked = std::chrono::steady_clock::now();
  while (watch_ && !work->isCompleted()) {
    try {
      work->wait(kLookUp);
    } catch (const std::exception&) {  // not in that time, or failed
    }
    if (work->isCompleted()) break;
    if (watch_->over()) throw GroupIsOver();
    const auto now = std::chrono::steady_clock::now();
    if (!watch_->announce_main_work()) waited += now - looked;
    looked = now;
    if (patient_ && waited > limit()) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit()).count();
      throw std::runtime_error(c10::str("some rank did not come within ", seconds, " s"));
    }
  }
  work->wait();
}

void C10dCommunicator::announce_main_work() {
  if (watch_ && rank() == 0) watch_->set_working(true);
}

// Rank after rank. The tensors belong to the call, which may go on after this rank has given up.
at::Tensor C10dCommunicator::gather_bytes(const void* data, std::size_t size) {
  return guarded([&] {
    const auto count = static_cast<int64_t>(size);
    const at::Tensor own = at::empty({count}, at::kByte), all = at::empty({world_size(), count}, at::kByte);
    std::memcpy(own.mutable_data_ptr(), data, size);
    std::vector<at::Tensor> inputs{own};
    std::vector<std::vector<at::Tensor>> outputs{all.unbind(0)};
    c10d::AllgatherOptions options;
    options.timeout = timeout();
    wait(host_->allgather(outputs, inputs, options));
    return all;
  });
}

// What an all_gather or broadcast begins with. It has one size for all of them: Gloo ends the process when ranks that
// are at different calls exchange blocks of different sizes.
struct C10dCommunicator::CallHead {
  CallKind kind;
  int64_t root;         // of a broadcast
  int64_t bytes = 0;    // that this rank gives ...
  char first[56] = {};  // ... and the first of these

  std::string text() const {
    if (kind == CallKind::kTexts) return "all_gather of a text";
    if (kind == CallKind::kBroadcast) return c10::str("broadcast from rank ", root);
    return c10::str("all_gather of ", bytes, " bytes");
  }
};

// The heads of all ranks, which are at the same call.
std::vector<C10dCommunicator::CallHead> C10dCommunicator::begin_call(CallHead own, const std::string& bytes) {
  own.bytes = std::ssize(bytes);
  std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof own.first), own.first);
  const at::Tensor all = gather_bytes(&own, sizeof own);
  std::vector<CallHead> heads(static_cast<std::size_t>(world_size()), own);
  std::memcpy(heads.data(), all.const_data_ptr(), all.nbytes());
  for (std::size_t rank = 0; rank < heads.size(); ++rank) {
    const std::string there = heads[rank].text(), first = heads[0].text();
    if (there == first) continue;
    throw ConfigError(c10::str("[Communicator] rank ", rank, " is at another call than rank 0: '", there,
                               "' instead of '", first,
                               "', expected the same calls in the same order on all ranks; call barrier(), save() "
                               "and their like on every rank"));
  }
  return heads;
}

std::vector<std::string> C10dCommunicator::all_gather(const std::string& bytes, bool of_one_size) {
  const std::vector<CallHead> heads = begin_call({of_one_size ? CallKind::kOfOneSize : CallKind::kTexts, 0}, bytes);
  const auto longest = static_cast<std::size_t>(std::ranges::max(heads, {}, &CallHead::bytes).bytes);
  at::Tensor all;
  if (longest > sizeof heads.front().first) {
    std::string padded = bytes;
    padded.resize(longest);
    all = gather_bytes(padded.data(), longest);
  }
  std::vector<std::string> texts;
  for (const CallHead& head : heads) {
    const auto* const begin =
        all.defined() ? static_cast<const char*>(all.const_data_ptr()) + texts.size() * longest : head.first;
    texts.emplace_back(begin, static_cast<std::size_t>(head.bytes));
  }
  return texts;
}

std::string C10dCommunicator::broadcast(const std::string& bytes, int64_t root) {
  require<ConfigError>(root >= 0 && root < world_size(), c10::str("[Communicator] broadcast from rank ", root,
                                                                  ", expected a rank from 0 to ", world_size() - 1));
  const auto heads = begin_call({CallKind::kBroadcast, root}, rank() == root ? bytes : std::string());
  const CallHead& from = heads[static_cast<std::size_t>(root)];
  const auto size = static_cast<std::size_t>(from.bytes);
  if (size <= sizeof from.first) return {from.first, size};
  return guarded([&] {
    const at::Tensor text = at::empty({from.bytes}, at::kByte);
    if (rank() == root) std::memcpy(text.mutable_data_ptr(), bytes.data(), bytes.size());
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout();
    std::vector<at::Tensor> tensors{text};
    wait(host_->broadcast(tensors, options));
    return std::string(static_cast<const char*>(text.const_data_ptr()), size);
  });
}

void C10dCommunicator::do_start_sum(const at::Tensor& values) {
  guarded([&] {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::SUM;
    options.timeout = timeout();
    std::vector<at::Tensor> tensors{values};
    open_[values.const_data_ptr()] = device_->allreduce(tensors, options);
  });
}

void C10dCommunicator::do_start_broadcast(const at::Tensor& values, int64_t root) {
  guarded([&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout();
    std::vector<at::Tensor> tensors{values};
    open_[values.const_data_ptr()] = device_->broadcast(tensors, options);
  });
}

void C10dCommunicator::do_finish(const at::Tensor& values) {
  guarded([&] {
    const auto open = open_.find(values.const_data_ptr());
    if (open == open_.end()) return;
    const c10::intrusive_ptr<c10d::Work> work = open->second;
    open_.erase(open);
    device_waits_on_host_ ? wait(work) : static_cast<void>(work->wait());
  });
}

void C10dCommunicator::report(int64_t step, const char* phase) {
  if (watch_) watch_->report(step, phase);
}

void C10dCommunicator::report(const char* phase) {
  if (watch_) watch_->report(phase);
}

void C10dCommunicator::fail(const std::string& reason) {
  if (!failure_.empty()) return;  // the others are to blame, and know
  failure_ = "[Communicator] this rank has failed: " + reason;
  if (watch_) watch_->fail(reason.substr(0, 2000));
  abandon();
}

void C10dCommunicator::abandon() {
  if (device_end_) DeviceEnd::start(device_end_);
  open_.clear();
  leave_behind(std::exchange(device_, nullptr));
  leave_behind(std::exchange(host_, nullptr));
}

}  // namespace duet
