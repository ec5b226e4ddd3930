#pragma once

#include <condition_variable>
#include <mutex>

namespace duet {

// Steps of several threads run at once. A capture runs alone, since the generator that they draw from is in one mode or
// the other, and so does what puts its state back. Used by the threads of one process.
class StepLock {
 public:
  // Held by a step. One within another counts as one.
  class Step {
   public:
    Step() {
      if (depth_++ == 0) shared().enter();
    }
    ~Step() {
      if (--depth_ == 0) shared().leave();
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
  };

  // Held by what runs alone, which may lie within a step of its thread. One within another counts as one.
  class Alone {
   public:
    Alone() : within_step_(depth_ > 0) {
      if (alone_++ == 0) shared().enter_alone(within_step_);
    }
    ~Alone() {
      if (--alone_ == 0) shared().leave_alone(within_step_);
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    bool within_step_;
  };

 private:
  static StepLock& shared() {
    static StepLock lock;
    return lock;
  }

  void enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !capturing_ && waiting_ == 0; });  // else a capture might wait for ever
    ++steps_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --steps_;
    changed_.notify_all();
  }
  void enter_alone(bool within_step) {
    std::unique_lock lock(mutex_);
    if (within_step) --steps_;
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !capturing_ && steps_ == 0; });
    --waiting_;
    capturing_ = true;
  }
  void leave_alone(bool within_step) {
    const std::lock_guard lock(mutex_);
    if (within_step) ++steps_;
    capturing_ = false;
    changed_.notify_all();
  }

  static inline thread_local int depth_ = 0;
  static inline thread_local int alone_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  int steps_ = 0;    // going on
  int waiting_ = 0;  // captures that wait
  bool capturing_ = false;
};

}  // namespace duet
