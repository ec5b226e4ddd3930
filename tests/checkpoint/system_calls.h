#pragma once

#include <chrono>
#include <functional>

// The calls of the system that a save makes: one that fails, one at which the process dies, and saves that are held.
namespace duet::testing {

// What may happen at a call, beside an errno.
constexpr int kKill = -1;     // the process dies
constexpr int kFlipBit = -2;  // one bit of what is written is another one; calls of write() alone count

// Fails the n-th call from here on, of whatever thread; the destructor tells the plan to stop.
class PlannedFault {
 public:
  PlannedFault(int calls, int kind);
  ~PlannedFault();
  PlannedFault(const PlannedFault&) = delete;
  PlannedFault& operator=(const PlannedFault&) = delete;
  bool happened() const;
};

// While it lives, flock() fails with this error.
class NoLocks {
 public:
  explicit NoLocks(int error);
  ~NoLocks();
  NoLocks(const NoLocks&) = delete;
  NoLocks& operator=(const NoLocks&) = delete;
};

// Until let_go(), the calls of all threads but the one that made it wait. One at a time.
class HeldCalls {
 public:
  HeldCalls();
  ~HeldCalls() { let_go(); }
  HeldCalls(const HeldCalls&) = delete;
  HeldCalls& operator=(const HeldCalls&) = delete;

  // Until so many threads are held; false if they are not within that time.
  bool wait_for(int threads, std::chrono::milliseconds at_most = std::chrono::minutes(1));
  void let_go();
};

// Runs `body` in a child process and returns what waitpid() tells of its end.
int in_child(const std::function<int()>& body);

}  // namespace duet::testing
