#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include "graph/graph_options.h"

namespace duet {

// Which replays of a signature are checked first, that is whose host code runs (TraceCheck): all of them where that
// costs little beside the kernels or where it is needed; otherwise the first ones in a row, and then random ones whose
// cost stays within the budget.
class CheckSchedule {
 public:
  // So many replays in a row find host code that changes every so often, and what begins after as many steps: of one
  // signature, or of all that share their code and then some of each.
  static constexpr int64_t kFirst = 1024, kFirstOfEach = 64;

  // `of_code` counts the checks of all signatures with this code.
  CheckSchedule(Check check, double budget, std::shared_ptr<int64_t> of_code)
      : check_(check), budget_(budget), of_code_(std::move(of_code)), random_(std::random_device{}()) {}

  // The step was captured just now. `always`: each replay needs its host code.
  void restart(bool always) {
    always_ = always;
    in_a_row_ = unchecked_ = 0;
    must_check_ = false;
    check_seconds_ = replay_seconds_ = 0;
    pause_ = 0;
    timed_alone_ = false;
  }
  // From here on every replay is checked.
  void check_always() { always_ = true; }
  // The code does something else than was recorded: what was learned of it counts for no signature.
  void differed() {
    *of_code_ = 0;
    always_ = true;
  }
  // The next one is: something was noticed.
  void must_check() { must_check_ = true; }

  bool due() const { return cannot_wait() || (check_ != Check::kOff && (pause_ == 0 || is_among_first())); }
  // Whether it is due even where checks that can wait are put off.
  bool cannot_wait() const { return always_ || check_ == Check::kEvery || (must_check_ && check_ != Check::kOff); }
  // Replays since the last check, and how many steps were done when they began.
  int64_t unchecked() const { return unchecked_; }
  int64_t unchecked_since() const { return unchecked_since_; }

  // `steps_done` before that replay: fewer than before where a checkpoint was gone back to.
  void replayed(int64_t steps_done) {
    unchecked_since_ = unchecked_++ == 0 ? steps_done : std::min(unchecked_since_, steps_done);
    pause_ = std::max<int64_t>(pause_ - 1, 0);
  }
  // Whether that replay is to be timed, which takes as long as a small kernel: those before a check, and some others.
  bool wants_seconds() const { return !timed_alone_ || unchecked_ % 16 == 0 || (pause_ < 16 && check_ != Check::kOff); }
  // Its seconds.
  void note_replay(double seconds) {
    if (!std::exchange(timed_alone_, true)) replay_seconds_ = 0;
    learn(replay_seconds_, seconds);
  }
  // Of a replay alone, as far as it is known.
  double replay_seconds() const { return replay_seconds_; }
  // Seconds of the whole step, and of the replay in it.
  void checked(double step_seconds, double replay_seconds) {
    unchecked_ = 0;
    must_check_ = false;
    // A check leaves cold caches behind: what it costs is what such a step takes longer than a replay alone, which in
    // turn takes no longer than one after a check.
    if (!timed_alone_ || replay_seconds < replay_seconds_) learn(replay_seconds_, replay_seconds);
    learn(check_seconds_, std::max(0.0, step_seconds - replay_seconds_));
    ++in_a_row_, ++*of_code_;
    plan_next();
  }
  // A comparison with an eager run is a check, too.
  void verified() {
    unchecked_ = 0;
    if (check_seconds_ > 0) plan_next();
  }

 private:
  bool is_among_first() const { return in_a_row_ < kFirst && (in_a_row_ < kFirstOfEach || *of_code_ < kFirst); }
  void plan_next() {
    const bool every = check_ == Check::kEvery || is_among_first() || (timed_alone_ && ratio() <= budget_);
    pause_ = every ? 0 : next_pause();
  }
  // A mean of the last ones, in which one that was disturbed counts little.
  static void learn(double& mean, double seconds) {
    mean = mean == 0 ? seconds : mean + 0.1 * (std::min(seconds, 3 * mean) - mean);
  }
  double ratio() const { return std::max(check_seconds_ / replay_seconds_, 1e-9); }
  // Replays until the next check, budget / ratio of which are checked on average.
  int64_t next_pause() {
    if (budget_ <= 0) return std::numeric_limits<int64_t>::max();
    const int64_t pause = std::geometric_distribution<int64_t>(std::min(1.0, budget_ / ratio()))(random_);
    return timed_alone_ ? pause : std::max<int64_t>(pause, 1);
  }

  Check check_;
  double budget_;
  std::shared_ptr<int64_t> of_code_;
  bool always_ = false;
  bool must_check_ = false;
  int64_t in_a_row_ = 0;
  int64_t unchecked_ = 0, unchecked_since_ = 0;
  int64_t pause_ = 0;  // replays until the next check
  double check_seconds_ = 0, replay_seconds_ = 0;
  bool timed_alone_ = false;  // a replay, without a check in its step
  std::minstd_rand random_;
};

// When a replay is compared with an eager run: after 1, 2, 4, ... replays and then every `interval` ones on average (0:
// never), and at once where something was noticed.
class VerifySchedule {
 public:
  explicit VerifySchedule(int64_t interval) : interval_(interval) { restart(); }

  // The step was captured just now.
  void restart() {
    unverified_ = 0;
    growing_ = 1;
    next_ = interval_ > 0 ? 2 : kNever;  // the first one shows what host code asks for (TraceCheck)
  }
  // The next replay is another program: it is compared. Those before it stay in doubt.
  void program_changed() {
    if (interval_ > 0) next_ = 0;
  }
  // Something was noticed that may make the next replay wrong. Those before it were fine.
  void must_verify() { must_verify_ = true; }

  // Whether the next replay is to be compared.
  bool due() const { return must_verify_ || unverified_ + 1 >= next_; }
  // Whether it is even where comparisons that can wait are put off.
  bool cannot_wait() const { return must_verify_; }
  // Replays that counted since the last comparison and may have been wrong already.
  int64_t doubtful() const { return must_verify_ ? 0 : unverified_; }
  int64_t doubtful_since() const { return unverified_since_; }

  // As CheckSchedule::replayed().
  void replayed(int64_t steps_done) {
    unverified_since_ = unverified_++ == 0 ? steps_done : std::min(unverified_since_, steps_done);
  }
  // A comparison could not be made.
  void put_off() { next_ = interval_ > 0 ? unverified_ + next() : kNever; }
  void verified() {
    next_ = interval_ > 0 ? next() : kNever;
    unverified_ = 0;
    must_verify_ = false;
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // At no fixed period: host code may have one.
  int64_t next() {
    growing_ = std::min(2 * growing_, interval_);
    return growing_ < interval_ ? growing_ : std::uniform_int_distribution<int64_t>(1, 2 * interval_ - 1)(random_);
  }

  std::minstd_rand random_{std::random_device{}()};
  int64_t interval_;
  int64_t growing_ = 1;
  int64_t unverified_ = 0;  // replays since the last comparison
  int64_t unverified_since_ = 0;
  int64_t next_ = kNever;  // replays until the next one
  bool must_verify_ = false;
};

}  // namespace duet
