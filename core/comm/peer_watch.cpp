#include <duet/core/comm/peer_watch.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace duet {

namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 100ms;
constexpr auto kSilence = 450ms;  // without a beat for that long, a rank is taken for dead or stopped

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string progress_key(int64_t rank) { return "progress/" + std::to_string(rank); }
std::string failed_key(int64_t rank) { return "failed/" + std::to_string(rank); }
std::string known_key(int64_t rank) { return "known/" + std::to_string(rank); }

}  // namespace

struct PeerWatch::Shared {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t rank = 0, world_size = 1;
  std::atomic<int64_t> update{0};
  std::atomic<const char*> phase{"start"};
  std::mutex mutex;
  std::condition_variable stopped;
  bool stopping = false;

  std::string place() const { return c10::str("update ", update.load(), " (", phase.load(), ")"); }
};

// A beat is a counter and where the rank is.
void PeerWatch::beat(const std::shared_ptr<Shared>& shared) {
  int64_t count = 0;
  std::unique_lock lock(shared->mutex);
  while (!shared->stopping) {
    lock.unlock();
    try {
      shared->store->set(progress_key(shared->rank), bytes_of(c10::str(++count, " ", shared->place())));
    } catch (const std::exception&) {
      return;  // the store is gone; the next collective finds out
    }
    lock.lock();
    shared->stopped.wait_for(lock, kBeat);
  }
}

PeerWatch::PeerWatch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, bool holds_store)
    : shared_(std::make_shared<Shared>()), holds_store_(holds_store) {
  shared_->store = std::move(store);
  shared_->rank = rank;
  shared_->world_size = world_size;
  std::thread([shared = shared_] { beat(shared); }).detach();
}

PeerWatch::~PeerWatch() {
  const std::lock_guard lock(shared_->mutex);
  shared_->stopping = true;
  shared_->stopped.notify_all();
}

void PeerWatch::report(int64_t update, const char* phase) {
  shared_->update = update;
  shared_->phase = phase;
}

std::string PeerWatch::place() const { return shared_->place(); }

namespace {

// Runs `call` in a thread of its own; `otherwise` if it takes longer than `limit`.
std::string within(std::chrono::milliseconds limit, const std::string& otherwise, std::function<std::string()> call) {
  auto promise = std::make_shared<std::promise<std::string>>();
  std::future<std::string> result = promise->get_future();
  std::thread([promise, call = std::move(call), otherwise] {
    try {
      promise->set_value(call());
    } catch (const std::exception&) {
      promise->set_value(otherwise);
    }
  }).detach();
  return result.wait_for(limit) == std::future_status::ready ? result.get() : otherwise;
}

}  // namespace

void PeerWatch::fail(const std::string& reason) {
  within(2000ms, "", [shared = shared_, reason, wait = holds_store_] {
    shared->store->set(failed_key(shared->rank), bytes_of(shared->place() + ": " + reason));
    const auto known = [&] {
      for (int64_t rank = 0; rank < shared->world_size; ++rank) {
        if (rank != shared->rank && !shared->store->check({known_key(rank)})) return false;
      }
      return true;
    };
    for (int tries = 0; wait && tries < 15 && !known(); ++tries) std::this_thread::sleep_for(100ms);
    return std::string();
  });
}

std::string PeerWatch::look(const std::shared_ptr<Shared>& shared) {
  c10d::Store& store = *shared->store;
  const auto read = [&store](const std::string& key) {
    return store.check({key}) ? text_of(store.get(key)) : std::string();
  };
  std::map<int64_t, std::string> first, now;
  const auto deadline = std::chrono::steady_clock::now() + kSilence;
  while (true) {
    for (int64_t rank = 0; rank < shared->world_size; ++rank) {
      if (rank == shared->rank) continue;
      const std::string failure = read(failed_key(rank));
      if (!failure.empty()) {
        store.set(known_key(shared->rank), bytes_of("1"));
        return c10::str("rank ", rank, " failed in ", failure);
      }
      now[rank] = read(progress_key(rank));
      first.try_emplace(rank, now[rank]);
    }
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(50ms);
  }
  store.set(known_key(shared->rank), bytes_of("1"));
  std::string silent;
  for (const auto& [rank, beat] : now) {
    if (beat != first[rank]) continue;
    const std::size_t space = beat.find(' ');
    silent += c10::str(silent.empty() ? "" : "; ", "rank ", rank, " is dead or stopped, last seen in ",
                       space == std::string::npos ? "its start" : beat.substr(space + 1));
  }
  if (!silent.empty()) return silent;
  std::string places;
  for (const auto& [rank, beat] : now) {
    const std::size_t space = beat.find(' ');
    places += c10::str(places.empty() ? "" : ", ", "rank ", rank, " in ", space == std::string::npos ? "its start" : beat.substr(space + 1));
  }
  return "all ranks live but are not at the same call: " + places;
}

std::string PeerWatch::diagnose(const std::string& error) {
  const std::string nobody = holds_store_ ? "no rank answers" : "the process that holds the store (rank 0 or the launcher) is dead or stopped";
  const std::string found = within(1500ms, nobody, [shared = shared_] { return look(shared); });
  return c10::str("[Communicator] rank ", shared_->rank, " waited for the others in ", place(), ": ", found, " (", error, ")");
}

}  // namespace duet
