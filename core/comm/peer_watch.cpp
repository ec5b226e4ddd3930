#include <duet/core/comm/peer_watch.h>

#include <c10/util/StringUtil.h>
#include <duet/core/comm/store_text.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace duet {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kBeat = 100ms;
constexpr auto kQuickBeat = 50ms;  // while somebody looks for what is wrong
constexpr auto kSilence = 450ms;   // without a beat for that long, a rank is taken for dead or stopped
constexpr auto kAnswer = 400ms;    // for a store that works
constexpr auto kGoodbye = 150ms;
constexpr auto kLongestStay = 1500ms;

std::string progress_key(int64_t rank) { return "progress/" + std::to_string(rank); }
std::string known_key(int64_t rank) { return "known/" + std::to_string(rank); }
constexpr const char* kVerdict = "verdict";
constexpr char kLeft = '-';  // instead of a beat's count: the rank has left the group

// What was last heard of another rank.
struct Peer {
  std::string beat;  // "17 update 3 (data)"; empty: nothing yet
  Clock::time_point changed;
  int64_t same = 0;        // rounds in a row that found no change
  bool looked_at = false;  // since somebody looks
  bool changes = false;    // since then
  bool knows = false;      // the verdict

  bool left() const { return !beat.empty() && beat.front() == kLeft; }
  std::string place() const {
    const std::size_t space = beat.find(' ');
    return space == std::string::npos ? "update 0 (start)" : beat.substr(space + 1);
  }
};

}  // namespace

struct PeerWatch::Shared {
  // Of the thread alone.
  c10::intrusive_ptr<c10d::Store> store;
  int64_t count = 0;

  int64_t rank = 0, world_size = 1, holder = 0;
  std::atomic<int64_t> update{0};
  std::atomic<const char*> phase{"start"};
  std::atomic<bool> over{false};

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool stopping = false, done = false;
  bool looking = false;             // all peers are read, not only the holder
  int64_t rounds = 0;               // since then
  std::function<void()> end_waits;  // null: nobody has asked, or it was called
  std::chrono::milliseconds silence{0};
  std::string proposal;  // for the verdict
  std::string verdict;   // what the group says; empty: it goes on
  std::map<int64_t, Peer> peers;

  std::string place() const { return c10::str("update ", update.load(), " (", phase.load(), ")"); }

  int64_t next() const { return (rank + 1) % world_size; }
  void run();
  void round();
  void read_peers(bool all, bool with_next);
  void look_at_next();
  void end_all_waits();
  void outwait_lost_store(std::unique_lock<std::mutex>& lock);
  int64_t silent_peers() const;
  std::string found() const;
  std::string holder_text();
};

// Ends when it shall, or when the store is gone: the next collective finds out.
void PeerWatch::Shared::run() {
  std::unique_lock lock(mutex);
  try {
    while (!stopping) {
      lock.unlock();
      round();
      if (over) end_all_waits();
      lock.lock();
      ++rounds;
      changed.notify_all();
      const bool asked = !proposal.empty() && verdict.empty();
      if (!stopping && !asked) changed.wait_for(lock, looking ? kQuickBeat : kBeat);
    }
    lock.unlock();
    set_text(*store, progress_key(rank), c10::str(kLeft, " ", place()));
    lock.lock();
  } catch (const std::exception&) {
    if (!lock.owns_lock()) lock.lock();
    outwait_lost_store(lock);
  }
  done = true;
  changed.notify_all();
}

void PeerWatch::Shared::round() {
  set_text(*store, progress_key(rank), c10::str(++count, " ", place()));
  std::string wanted, said;
  bool all = false, watching = false;
  {
    const std::lock_guard lock(mutex);
    watching = end_waits != nullptr;
    wanted = proposal;
    said = verdict;
    all = looking;
  }
  if (said.empty()) {
    if (!wanted.empty()) {
      said = text_of(store->compareSet(kVerdict, {}, bytes_of(wanted)));
    } else {
      said = text_at(*store, kVerdict);
    }
    if (!said.empty()) set_text(*store, known_key(rank), "1");
    const std::lock_guard lock(mutex);
    verdict = said;
    over = !said.empty();
  }
  read_peers(all, watching);
  if (watching && said.empty()) look_at_next();
}

// Every rank looks at one other, so that all are looked at. Rounds are counted, not time: this process may itself have
// been stopped.
void PeerWatch::Shared::look_at_next() {
  const std::lock_guard lock(mutex);
  if (!proposal.empty()) return;
  const Peer& peer = peers[next()];
  if (peer.left() || peer.same * kBeat < silence) return;
  proposal = c10::str("rank ", next(), " is dead or stopped, last seen in ", peer.place());
}

void PeerWatch::Shared::end_all_waits() {
  std::function<void()> end;
  {
    const std::lock_guard lock(mutex);
    end = std::exchange(end_waits, nullptr);
  }
  if (end) end();
}

// Who held it may only have come to its end a little earlier.
void PeerWatch::Shared::outwait_lost_store(std::unique_lock<std::mutex>& lock) {
  done = true;
  changed.notify_all();
  if (changed.wait_for(lock, silence, [this] { return stopping || !end_waits; })) return;
  lock.unlock();
  end_all_waits();
  lock.lock();
}

// The holder is read every time: once the store is gone, nobody can.
void PeerWatch::Shared::read_peers(bool all, bool with_next) {
  for (int64_t peer = 0; peer < world_size; ++peer) {
    if (peer == rank || (!all && peer != holder && !(with_next && peer == next()))) continue;
    const std::string beat = text_at(*store, progress_key(peer));
    const bool knows = all && holder == rank && store->check({known_key(peer)});
    const std::lock_guard lock(mutex);
    Peer& entry = peers[peer];
    entry.knows = knows;
    const bool changes = entry.beat != beat;
    entry.same = changes ? 0 : entry.same + 1;
    if (changes || entry.changed == Clock::time_point()) entry.changed = Clock::now();
    entry.changes = entry.changes || (changes && entry.looked_at);
    entry.looked_at = entry.looked_at || all;
    entry.beat = beat;
  }
}

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
}

void PeerWatch::report(int64_t update, const char* phase) {
  shared_->update = update;
  shared_->phase = phase;
}

void PeerWatch::report(const char* phase) { shared_->phase = phase; }

bool PeerWatch::over() const { return shared_->over; }

void PeerWatch::watch_for_waits(std::function<void()> end_waits, std::chrono::milliseconds silence) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->done) {  // the store is lost already
    lock.unlock();
    return end_waits();
  }
  shared_->end_waits = std::move(end_waits);
  shared_->silence = silence;
}

// Rank 0 must not end before the others have read the verdict, for the store ends with it.
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
      const bool gone = peer.left() || Clock::now() - peer.changed > kSilence;
      if (!peer.knows && !gone) return false;
    }
    return true;
  });
}

void PeerWatch::fail(const std::string& reason) {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->proposal = c10::str("rank ", shared_->rank, " failed in ", shared_->place(), ": ", reason);
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, 2 * kAnswer, [this] { return !shared_->verdict.empty() || shared_->done; });
  }
  stay_until_known();
}

std::string PeerWatch::Shared::holder_text() {
  if (holder < 0) return "the launcher, which holds the store, is dead or stopped";
  return c10::str("rank ", holder, " is dead or stopped, last seen in ", peers[holder].place());
}

int64_t PeerWatch::Shared::silent_peers() const {
  return std::count_if(peers.begin(), peers.end(), [](const auto& item) { return !item.second.changes; });
}

// What the beats say, after kSilence.
std::string PeerWatch::Shared::found() const {
  std::string silent, places;
  for (const auto& [peer, entry] : peers) {
    places += c10::str(", rank ", peer, " in ", entry.place());
    if (entry.changes) continue;
    silent += c10::str(silent.empty() ? "" : "; ", "rank ", peer,
                       entry.left() ? " has left the group in " : " is dead or stopped, last seen in ", entry.place());
  }
  if (!silent.empty()) return silent;
  return c10::str("all ranks live but are not at the same call: rank ", rank, " in ", place(), places);
}

std::string PeerWatch::diagnose(const std::string& error) {
  Shared& shared = *shared_;
  std::string why;
  {
    std::unique_lock lock(shared.mutex);
    const auto settled = [&] { return !shared.verdict.empty() || shared.done; };
    if (!settled()) {
      shared.looking = true;
      shared.rounds = 0;
      for (auto& [rank, peer] : shared.peers) peer.changes = peer.looked_at = false;
      shared.changed.notify_all();
      shared.changed.wait_for(lock, kSilence, settled);
      // Two at once are rare; a busy machine is not.
      if (shared.silent_peers() > 1) shared.changed.wait_for(lock, kSilence, settled);
    }
    if (!settled() && shared.rounds > 1) {
      shared.proposal = shared.found();
      shared.changed.notify_all();
      shared.changed.wait_for(lock, kAnswer, settled);
    }
    if (!shared.verdict.empty()) {
      why = shared.verdict;
    } else if (shared.holder != shared.rank) {
      why = shared.holder_text();
    } else {
      why = shared.proposal.empty() ? "no rank answers" : shared.proposal;
    }
  }
  if (why.rfind(c10::str("rank ", shared.rank, " is dead or stopped"), 0) == 0) {
    why = "they took this rank for dead or stopped, and have ended";
  }
  stay_until_known();
  const std::string cause = error.empty() ? error : " (" + error + ")";
  return c10::str("[Communicator] rank ", shared.rank, " waited for the others in ", shared.place(), ": ", why, cause);
}

}  // namespace duet
