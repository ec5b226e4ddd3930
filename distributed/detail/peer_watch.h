#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace duet {

// How long ago another process was heard of. Time that this process did not listen in, since it was stopped or the
// machine was too busy, counts little: the other may well have spoken.
class HeartbeatAge {
 public:
  using Clock = std::chrono::steady_clock;
  // No two looks are further apart in a process that runs.
  static constexpr std::chrono::milliseconds kLongestPause{200};

  void look(Clock::time_point now, bool heard) {
    const Clock::duration pause = looked_ == Clock::time_point() ? Clock::duration::zero() : now - looked_;
    length_ = heard ? Clock::duration::zero() : length_ + std::min<Clock::duration>(pause, kLongestPause);
    looked_ = now;
  }
  Clock::duration length() const { return length_; }

 private:
  Clock::time_point looked_{};
  Clock::duration length_{0};
};

// Knows what the other ranks do, through a store that outlives the group's collectives. A thread writes this rank's
// heartbeat there several times a second, with its place in the loop, and reads whether the group has failed: the first
// rank that finds out why it cannot go on writes that, and all others adopt it, so that nobody blames a rank that only
// ended because of another.
class PeerWatch {
 public:
  // `store` is used by nobody else: it may hang when the process that holds it is stopped. `holder` is the rank that
  // holds the store; -1: the launcher does. This rank then stays until the others know.
  PeerWatch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, int64_t holder);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  void report(int64_t step, const char* phase);
  void report(const char* phase);
  // What rank 0 says of itself: it is at work, and the others shall wait. Only while watch_for_waits() is in force.
  void set_working(bool working);
  bool announce_main_work() const;
  // Whether the group has failed, or the rank that holds the store is lost (watch_for_waits); never waits.
  bool over() const;
  // For waits that may be longer than `lost_after`, and for those that cannot look up, such as that of a GPU for
  // another one: this object then writes the failure itself when the next rank had no heartbeat for that long, and
  // calls `end_waits` once when the group has failed or the store was lost that long ago, in another thread. To be
  // called once.
  void watch_for_waits(std::function<void()> end_waits, std::chrono::milliseconds lost_after);
  // Tells the others that this rank failed.
  void fail(const std::string& reason);
  // Why the group is over, for an error's text. `error`: what made this rank ask; empty: over() did. Takes about half a
  // second when no rank has found it yet.
  std::string diagnose(const std::string& error);

 private:
  struct Shared;

  void stay_until_known();

  std::shared_ptr<Shared> shared_;  // with the thread, which is left behind if the store hangs
};

}  // namespace duet
