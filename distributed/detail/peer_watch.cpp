#include "distributed/detail/peer_watch.h"
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#include <c10/util/StringUtil.h>
#include <c10/util/thread_name.h>
#include "distributed/detail/store_text.h"

namespace duet {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kInterval = 100ms;      // between two heartbeats
constexpr auto kQuickInterval = 50ms;  // while somebody looks for what is wrong
constexpr auto kLostAfter = 450ms;     // a rank without a heartbeat for that long is taken for dead or stopped
constexpr auto kAnswer = 400ms;        // for a store that works
constexpr auto kGoodbye = 150ms;
constexpr auto kLongestStay = 5000ms;
constexpr auto kLongestSilence = 2000ms;  // of a rank that may still read the failure

std::string progress_key(int64_t rank) { return "progress/" + std::to_string(rank); }
constexpr const char* kFailure = "failure";
// What a heartbeat begins with, before or instead of its count.
constexpr const char* kKnows = "!";  // the rank knows of the failure
constexpr const char* kLeft = "-";   // the rank has left the group
constexpr char kWorks = '*';         // behind its count: the others shall wait

std::string lost_text(int64_t rank) { return c10::str("rank ", rank, " is dead or stopped"); }

}  // namespace

struct PeerWatch::Shared {
  // What was last heard of another rank.
  struct Peer {
    std::string heartbeat;  // "17 step 3 (data)"; empty: nothing yet
    HeartbeatAge age;
    bool looked_at = false;  // since somebody looks
    bool changes = false;    // since then

    bool left() const { return heartbeat.starts_with(kLeft); }
    bool knows() const { return heartbeat.starts_with(kKnows); }
    bool works() const {
      const std::size_t space = heartbeat.find(' ');
      return space != std::string::npos && space > 0 && heartbeat[space - 1] == kWorks;
    }
    std::string place() const {
      const std::size_t space = heartbeat.find(' ');
      return space == std::string::npos ? "step 0 (start)" : heartbeat.substr(space + 1);
    }
  };

  // Of the thread alone.
  c10::intrusive_ptr<c10d::Store> store;
  int64_t count = 0;

  int64_t rank = 0, world_size = 1, holder = 0;
  std::atomic<int64_t> step{0};
  std::atomic<const char*> phase{"start"};
  std::atomic<bool> working{false};
  std::atomic<bool> over{false};
  std::atomic<int64_t> answers{0};  // rounds that the store has answered

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool stopping = false, done = false;
  std::atomic<bool> stuck{false};   // the rank that holds the store no longer answers, though its connections are there
  bool looking = false;             // all peers are read, not only the holder
  int64_t rounds = 0;               // since then
  std::function<void()> end_waits;  // null: nobody has asked, or it was called
  std::chrono::milliseconds lost_after{0};
  std::string proposal;  // for the failure
  std::string failure;   // why the group is over; empty: it goes on
  std::map<int64_t, Peer> peers;

  std::string place() const { return c10::str("step ", step.load(), " (", phase.load(), ")"); }

  int64_t next() const { return (rank + 1) % world_size; }

  // What a round is for.
  struct PollRequest {
    std::string proposal;
    std::vector<int64_t> peers;  // to read
    bool all = false;            // these are all
    bool waits = false;          // somebody waits, and shall hear when the next rank is lost
  };

  // The store is about to go, which c10d would report with a stack trace.
  bool holder_left() const {
    const auto found = peers.find(holder);
    return found != peers.end() && found->second.left();
  }

  // Ends when it shall, or when the store is gone: the next collective finds out.
  void run() {
    c10::setThreadName("duet_watch");
    std::unique_lock lock(mutex, std::defer_lock);
    try {
      store->compareSet(kFailure, bytes_of(""), bytes_of(""));  // what is there is read faster (texts_at)
      lock.lock();
      while (!stopping && !holder_left()) {
        lock.unlock();
        round();
        ++answers;
        if (over) end_all_waits();
        lock.lock();
        ++rounds;
        changed.notify_all();
        const bool asked = !proposal.empty() && failure.empty();
        if (!stopping && !asked) changed.wait_for(lock, looking ? kQuickInterval : kInterval);
      }
      if (holder_left()) {
        wait_for_store(lock);
      } else {
        lock.unlock();
        set_text(*store, progress_key(rank), c10::str(kLeft, " ", place()));
        lock.lock();
      }
    } catch (const std::exception&) {
      if (!lock.owns_lock()) lock.lock();
      wait_for_store(lock);
    }
    done = true;
    changed.notify_all();
  }

  void round() {
    publish_heartbeat();
    const PollRequest request = next_poll();
    std::vector<std::string> keys = {kFailure};
    for (const int64_t peer : request.peers) keys.push_back(progress_key(peer));
    const std::vector<std::string> texts = texts_at(*store, keys);
    std::string said = texts.front();
    if (said.empty() && !request.proposal.empty()) {
      said = text_of(store->compareSet(kFailure, {}, bytes_of(request.proposal)));
    }
    if (!said.empty()) hear_failure(said);
    for (std::size_t i = 0; i < request.peers.size(); ++i) on_heartbeat(request.peers[i], texts[i + 1], request.all);
    if (request.waits && said.empty()) look_at_next();
  }

  void publish_heartbeat() {
    const std::string works(working ? 1 : 0, kWorks);
    set_text(*store, progress_key(rank), c10::str(over ? kKnows : "", ++count, works, " ", place()));
  }

  // All messages to the store are sent without the mutex, which the training's thread must not wait for.
  PollRequest next_poll() {
    const std::lock_guard lock(mutex);
    PollRequest request{proposal, {}, looking, end_waits != nullptr};
    for (int64_t peer = 0; peer < world_size; ++peer) {
      // The holder is read every time: once the store is gone, nobody can. Rank 0 may be at work.
      const bool wanted = request.all || peer == holder || (request.waits && (peer == next() || peer == 0));
      if (peer != rank && wanted) request.peers.push_back(peer);
    }
    return request;
  }

  void hear_failure(const std::string& said) {
    if (over) return;
    {
      const std::lock_guard lock(mutex);
      failure = said;
      over = true;
    }
    publish_heartbeat();
  }

  void on_heartbeat(int64_t peer, const std::string& heartbeat, bool all) {
    const std::lock_guard lock(mutex);
    Peer& entry = peers[peer];
    const bool changes = entry.heartbeat != heartbeat;
    entry.age.look(Clock::now(), changes);
    entry.changes = entry.changes || (changes && entry.looked_at);
    entry.looked_at = entry.looked_at || all;
    entry.heartbeat = heartbeat;
  }

  // Every rank looks at one other, so that all are looked at.
  void look_at_next() {
    const std::lock_guard lock(mutex);
    if (!proposal.empty()) return;
    const Peer& peer = peers[next()];
    if (peer.left() || peer.age.length() < lost_after) return;
    proposal = c10::str(lost_text(next()), ", last seen in ", peer.place());
  }

  void end_all_waits() {
    std::function<void()> end;
    {
      const std::lock_guard lock(mutex);
      end = std::exchange(end_waits, nullptr);
    }
    if (end) end();
  }

  // Who held it may only have come to its end a little earlier.
  void wait_for_store(std::unique_lock<std::mutex>& lock) {
    done = true;
    changed.notify_all();
    if (changed.wait_for(lock, lost_after, [this] { return stopping || !end_waits; })) return;
    lock.unlock();
    end_all_waits();
    lock.lock();
  }

  // In a thread of its own: a store whose process is stopped does not answer, and has no timeout.
  void guard_store() {
    c10::setThreadName("duet_guard");
    HeartbeatAge age;
    int64_t heard = -1;
    std::unique_lock lock(mutex);
    while (!stopping && !done && !over) {
      age.look(Clock::now(), answers != heard);
      heard = answers;
      if (age.length() >= lost_after) {
        stuck = true;
        changed.notify_all();
        lock.unlock();
        return end_all_waits();
      }
      changed.wait_for(lock, kInterval);
    }
  }

  std::string holder_text() {
    if (holder < 0) return "the launcher, which holds the store, is dead or stopped";
    const std::string lost =
        holder_left() ? c10::str("rank ", holder, " has left the group in ") : lost_text(holder) + ", last seen in ";
    return lost + peers[holder].place();
  }

  int64_t lost_peers() const {
    return std::count_if(peers.begin(), peers.end(), [](const auto& item) { return !item.second.changes; });
  }

  // What the heartbeats say, after kLostAfter.
  std::string found() const {
    std::string lost, places;
    for (const auto& [peer, entry] : peers) {
      places += c10::str(", rank ", peer, " in ", entry.place());
      if (entry.changes) continue;
      const std::string what =
          entry.left() ? c10::str("rank ", peer, " has left the group in ") : lost_text(peer) + ", last seen in ";
      lost += (lost.empty() ? "" : "; ") + what + entry.place();
    }
    if (!lost.empty()) return lost;
    return c10::str("all ranks live but are not at the same call: rank ", rank, " in ", place(), places);
  }
};

PeerWatch::PeerWatch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, int64_t holder)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
  shared_->rank = rank;
  shared_->world_size = world_size;
  shared_->holder = holder;
  std::thread([shared = shared_] { shared->run(); }).detach();
}

PeerWatch::~PeerWatch() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->end_waits = nullptr;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kGoodbye, [this] { return shared_->done; });
  lock.unlock();
  if (shared_->holder == shared_->rank) std::this_thread::sleep_for(kGoodbye);  // the others read that it has left
}

void PeerWatch::report(int64_t step, const char* phase) {
  shared_->step = step;
  shared_->phase = phase;
}

void PeerWatch::report(const char* phase) { shared_->phase = phase; }

void PeerWatch::set_working(bool working) { shared_->working = working; }

bool PeerWatch::announce_main_work() const {
  const std::lock_guard lock(shared_->mutex);
  const auto main = shared_->peers.find(0);
  return !shared_->done && !shared_->stuck && main != shared_->peers.end() && main->second.works();
}

bool PeerWatch::over() const { return shared_->over || shared_->stuck; }

void PeerWatch::watch_for_waits(std::function<void()> end_waits, std::chrono::milliseconds lost_after) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->done) {  // the store is lost already
    lock.unlock();
    return end_waits();
  }
  shared_->end_waits = std::move(end_waits);
  shared_->lost_after = lost_after;
  // A launcher that does not answer is no reason to end ranks that are well.
  if (shared_->holder < 0 || shared_->holder == shared_->rank) return;
  std::thread([shared = shared_] { shared->guard_store(); }).detach();
}

// Rank 0 must not end before the others have read the failure, for the store ends with it.
void PeerWatch::stay_until_known() {
  Shared& shared = *shared_;
  if (shared.holder != shared.rank) return;
  std::unique_lock lock(shared.mutex);
  if (!shared.looking) {
    shared.looking = true;
    shared.rounds = 0;
  }
  shared.changed.wait_for(lock, kLongestStay, [&] {
    if (shared.done) return true;
    if (shared.rounds < 2) return false;
    for (const auto& [rank, peer] : shared.peers) {
      const bool named = shared.failure.find(lost_text(rank)) != std::string::npos;
      const bool gone = peer.left() || peer.age.length() > (named ? kLostAfter : kLongestSilence);
      if (!peer.knows() && !gone) return false;
    }
    return true;
  });
}

void PeerWatch::fail(const std::string& reason) {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->proposal = c10::str("rank ", shared_->rank, " failed in ", shared_->place(), ": ", reason);
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, 2 * kAnswer, [this] { return !shared_->failure.empty() || shared_->done; });
  }
  stay_until_known();
}

std::string PeerWatch::diagnose(const std::string& error) {
  Shared& shared = *shared_;
  std::string why;
  {
    std::unique_lock lock(shared.mutex);
    const auto settled = [&] { return !shared.failure.empty() || shared.done || shared.stuck; };
    if (!settled()) {
      shared.looking = true;
      shared.rounds = 0;
      for (auto& [rank, peer] : shared.peers) peer.changes = peer.looked_at = false;
      shared.changed.notify_all();
      shared.changed.wait_for(lock, kLostAfter, settled);
      // Two at once are rare; a busy machine is not.
      if (shared.lost_peers() > 1) shared.changed.wait_for(lock, kLostAfter, settled);
      shared.changed.wait_for(lock, kLongestSilence, [&] { return settled() || shared.rounds > 1; });
    }
    if (!settled() && shared.rounds > 1) {
      shared.proposal = shared.found();
      shared.changed.notify_all();
      shared.changed.wait_for(lock, kAnswer, settled);
    }
    if (!shared.failure.empty()) {
      why = shared.failure;
    } else if (shared.holder != shared.rank) {
      why = shared.holder_text();
    } else {
      why = shared.proposal.empty() ? "no rank answers" : shared.proposal;
    }
  }
  if (why.find(lost_text(shared.rank)) != std::string::npos) {
    why = "they took this rank for dead or stopped, and have ended";
  }
  stay_until_known();
  const std::string cause = error.empty() ? error : " (" + error + ")";
  return c10::str("[Communicator] rank ", shared.rank, " waited for the others in ", shared.place(), ": ", why, cause);
}

}  // namespace duet
