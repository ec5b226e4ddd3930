#include "distributed/detail/c10d_communicator.h"
#include <algorithm>
#include <atomic>
#include <cmath>
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

// What an all_gather or broadcast begins with: its kind, how many numbers it has, and the first of them. It has one
// size for all of them: Gloo ends the process when ranks that are at different calls exchange blocks of different
// sizes.
constexpr std::size_t kHead = 9;
constexpr double kNumbers = 1, kTexts = 2, kBroadcast = 3;

std::string call_text(const std::vector<double>& head) {
  if (head[0] == kTexts) return "all_gather of a text";
  if (head[0] == kBroadcast) return c10::str("broadcast from rank ", head[3]);
  return c10::str("all_gather of ", head[1], head[1] == 1 ? " number" : " numbers");
}

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
    if (!watch_->main_works()) waited += now - looked;
    looked = now;
    if (patient_ && waited > limit()) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit()).count();
      throw std::runtime_error(c10::str("some rank did not come within ", seconds, " s"));
    }
  }
  work->wait();
}

void C10dCommunicator::main_works() {
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

std::vector<std::vector<double>> C10dCommunicator::gather_rows(const std::vector<double>& numbers) {
  const at::Tensor all = gather_bytes(numbers.data(), numbers.size() * sizeof(double));
  const auto* values = static_cast<const double*>(all.const_data_ptr());
  std::vector<std::vector<double>> rows;
  for (int64_t rank = 0; rank < world_size(); ++rank, values += numbers.size()) {
    rows.emplace_back(values, values + numbers.size());
  }
  return rows;
}

std::vector<std::vector<double>> C10dCommunicator::gather_call(double kind, const std::vector<double>& numbers) {
  std::vector<double> head{kind, static_cast<double>(numbers.size())};
  head.insert(head.end(), numbers.begin(),
              numbers.begin() + static_cast<std::ptrdiff_t>(std::min(numbers.size(), kHead - 2)));
  head.resize(kHead);
  std::vector<std::vector<double>> rows = gather_rows(head);
  for (std::size_t rank = 1; rank < rows.size(); ++rank) {
    const std::string there = call_text(rows[rank]), first = call_text(rows[0]);
    if (there == first) continue;
    throw ConfigError(c10::str("[Communicator] rank ", rank, " is at another call than rank 0: '", there,
                               "' instead of '", first,
                               "', expected the same calls in the same order on all ranks; call barrier(), save() and "
                               "their like on every rank"));
  }
  if (numbers.size() > kHead - 2) return gather_rows(numbers);
  for (auto& row : rows) row = {row.begin() + 2, row.begin() + 2 + static_cast<std::ptrdiff_t>(numbers.size())};
  return rows;
}

namespace {

// The size of a text that a rank announces: what it says is memory here. No text of ours comes near.
constexpr double kMaxText = double{1 << 30} * 2;

std::size_t checked_size(double announced, std::size_t rank) {
  if (announced >= 0 && announced <= kMaxText && announced == std::floor(announced)) {
    return static_cast<std::size_t>(announced);
  }
  throw PeerError(c10::str("[Communicator] rank ", rank, " announces a text of ", announced,
                           " bytes, expected a whole number from 0 to ", kMaxText,
                           "; start the same program on all ranks"));
}

}  // namespace

std::vector<std::vector<double>> C10dCommunicator::all_gather(const std::vector<double>& numbers) {
  return gather_call(kNumbers, numbers);
}

std::vector<std::string> C10dCommunicator::all_gather(const std::string& bytes) {
  const auto rows = gather_call(kTexts, {static_cast<double>(bytes.size())});
  std::vector<std::size_t> sizes;
  for (const auto& row : rows) sizes.push_back(checked_size(row.front(), sizes.size()));
  const std::size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> texts(sizes.size());
  if (longest == 0) return texts;
  std::string padded = bytes;
  padded.resize(longest);
  const at::Tensor all = gather_bytes(padded.data(), longest);
  const auto* begin = static_cast<const char*>(all.const_data_ptr());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank].assign(begin + rank * longest, sizes[rank]);
  return texts;
}

std::string C10dCommunicator::broadcast(const std::string& bytes, int64_t root) {
  require<ConfigError>(root >= 0 && root < world_size(), c10::str("[Communicator] broadcast from rank ", root,
                                                                  ", expected a rank from 0 to ", world_size() - 1));
  const double own = rank() == root ? static_cast<double>(bytes.size()) : 0;
  const auto sizes = gather_call(kBroadcast, {own, static_cast<double>(root)});
  const auto from = static_cast<std::size_t>(root);
  const auto size = static_cast<int64_t>(checked_size(sizes[from].front(), from));
  if (size == 0) return {};
  return guarded([&] {
    const at::Tensor text = at::empty({size}, at::kByte);
    if (rank() == root) std::memcpy(text.mutable_data_ptr(), bytes.data(), bytes.size());
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout();
    std::vector<at::Tensor> tensors{text};
    wait(host_->broadcast(tensors, options));
    return std::string(static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(size));
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
