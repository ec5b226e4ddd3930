#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>
#include "../base/state_dict.h"
#include "train_context.h"

namespace duet {

// Low runs first. Any integer in [0, 100] is allowed.
enum Priority : int {
  kHighest = 0,
  kVeryHigh = 10,
  kHigh = 30,
  kAboveNormal = 40,
  kNormal = 50,
  kBelowNormal = 60,
  kLow = 70,
  kVeryLow = 90,
  kLowest = 100,
};

// The number of "HIGHEST", "NORMAL", ... or of "0" to "100"; nothing for another text.
std::optional<int> parse_priority(const std::string& text);
// "NORMAL (50)", or "65" for a number without a name.
std::string priority_text(int priority);
std::vector<std::string> priority_names();

// Every point of a run that takes a TrainContext, as X(enumerator of HookPoint, member of Hook). The one place that
// spells them: the enum, Hook's members, their names, CallbackHook and the tests are made from it.
#define DUET_HOOK_POINTS(X)                                                                            \
  X(kBeforeRun, before_run)                                                                            \
  X(kAfterRun, after_run)                                                                              \
  X(kBeforeTrain, before_train)                                                                        \
  X(kAfterTrain, after_train)                                                                          \
  X(kBeforeTrainEpoch, before_train_epoch)                                                             \
  X(kAfterTrainEpoch, after_train_epoch)                                                               \
  X(kBeforeTrainIter, before_train_iter)                                                               \
  X(kAfterTrainIter, after_train_iter)                                                                 \
  X(kBeforeVal, before_val)                                                                            \
  X(kAfterVal, after_val)                                                                              \
  X(kBeforeValEpoch, before_val_epoch)                                                                 \
  X(kAfterValEpoch, after_val_epoch)                                                                   \
  X(kBeforeValIter, before_val_iter)                                                                   \
  X(kAfterValIter, after_val_iter)                                                                     \
  X(kBeforeTest, before_test)                                                                          \
  X(kAfterTest, after_test)                                                                            \
  X(kBeforeTestEpoch, before_test_epoch)                                                               \
  X(kAfterTestEpoch, after_test_epoch)                                                                 \
  X(kBeforeTestIter, before_test_iter)                                                                 \
  X(kAfterTestIter, after_test_iter)                                                                   \
  X(kBeforePredict, before_predict)                                                                    \
  X(kAfterPredict, after_predict)                                                                      \
  X(kBeforePredictEpoch, before_predict_epoch)                                                         \
  X(kAfterPredictEpoch, after_predict_epoch)                                                           \
  X(kBeforePredictIter, before_predict_iter)                                                           \
  X(kAfterPredictIter, after_predict_iter)                                                             \
  /* Before the trainer's whole state is taken, by CheckpointHook or BaseTrainer::save(). */           \
  X(kBeforeSaveCheckpoint, before_save_checkpoint)                                                     \
  /* The checkpoint TrainContext::saved_checkpoint is complete. */                                     \
  X(kAfterSaveCheckpoint, after_save_checkpoint)                                                       \
  X(kAfterLoadCheckpoint, after_load_checkpoint)                                                       \
  /* After the step's last backward; gradients before clipping, still multiplied by the loss scale. */ \
  X(kAfterBackward, after_backward)                                                                    \
  /* The norm is known; the gradients are not scaled yet (the optimizer's kernel does it). */          \
  X(kBeforeOptimizerStep, before_optimizer_step)                                                       \
  X(kAfterOptimizerStep, after_optimizer_step)                                                         \
  /* An exception leaves the loop; TrainContext::control.error says which. */                          \
  X(kOnException, on_exception)                                                                        \
  /* LoggerHook has written a line, TrainContext::log_line; on rank 0 alone, which logs for all. */    \
  X(kOnLog, on_log)

enum class HookPoint : int {
#define DUET_ENUMERATOR(point, member) point,
  DUET_HOOK_POINTS(DUET_ENUMERATOR)
#undef DUET_ENUMERATOR
      kInStep,
  kCount,
};

const char* to_string(HookPoint point);

// Something that happens around steps. Override the points you need, as `void after_train_iter(TrainContext&)`; the
// rest cost nothing. A *_iter point ticks once per step, in the same order in both modes:
//
//   before_run
//     before_train
//       before_train_epoch
//         before_train_iter
//           [ forward and backward of each micro-batch; after_backward;
//             before_optimizer_step; optimizer; in_step ]   after_optimizer_step
//         after_train_iter                       (then validation, if due: before_val ... after_val)
//       after_train_epoch
//     after_train                                (in every exit; on_exception before it on an error)
//   after_run
//
// before_val, before_val_epoch, before_val_iter, after_val_iter, after_val_epoch, after_val surround a validation, all
// of its named datasets together; test and predict have the like. An evaluation on its own is a run, too: before_run
// comes first, after_test (or its like) and after_run in every exit, on_exception before them on an error;
// RunControl::kind says what the run is. Progress::step counts up between after_optimizer_step and after_train_iter.
// A run that goes on within an epoch calls before_train_epoch of the hooks that keep no state again, so that what they
// set there holds; what they do to weights, buffers, numbers of the optimizer and random generators is then taken back.
// BaseTrainer::step() in a loop of the user's own has the points of training but those of epochs; finish() ends it.
//
// A hook that overrides after_backward or before_optimizer_step makes GraphTrainer split its captured step there. What
// it changes in place (a gradient, a weight) counts; reading a value there costs a sync.
class Hook : public Stateful {
 public:
  // Names the hook's state in a checkpoint, and the hook in messages. Unique within a list.
  virtual std::string name() const = 0;
  virtual int priority() const { return kNormal; }
  // Names of hooks that must run before this one at every point, whatever the priorities.
  virtual std::vector<std::string> after() const { return {}; }
  // Whether one of the same name takes its place that is added later.
  virtual bool gives_way() const { return false; }

#define DUET_MEMBER(point, member) \
  virtual void member(TrainContext&) {}
  DUET_HOOK_POINTS(DUET_MEMBER)
#undef DUET_MEMBER
  // Tensor code that belongs to the step: runs after the optimizer and is captured with it. No host reads.
  virtual void in_step(StepView&) {}

  // Whether it looks at what the model gave in a step, CurrentStep::output(): the step then keeps copies. Nothing is
  // kept for hooks that do not ask. Another answer captures the step anew.
  virtual bool wants_outputs() const { return false; }

  // Whether the hook may act at `point`: every point that its type overrides; all of them if its type was not known
  // when it was added to a trainer (see as_hook).
  bool uses(HookPoint point) const { return (unused_ >> static_cast<int>(point) & 1U) == 0; }

 protected:
  // For a hook whose options say where it acts.
  void set_used(HookPoint point, bool used) {
    const uint64_t bit = uint64_t{1} << static_cast<int>(point);
    unused_ = used ? unused_ & ~bit : unused_ | bit;
  }

 private:
  template <class H>
  friend std::unique_ptr<Hook> as_hook(std::unique_ptr<H> hook);
  template <class H>
  void note_inherited();

  uint64_t unused_ = 0;
};

static_assert(static_cast<int>(HookPoint::kCount) <= 64, "a bit for each point");

// A member pointer names the class that defines the member: a point is left empty if that is Hook itself. A member that
// cannot be named from here (a private one) counts as used.
template <class H>
void Hook::note_inherited() {
#define DUET_NOTE(point, member)                                                                                    \
  if constexpr (requires { &H::member; }) {                                                                         \
    if constexpr (std::is_same_v<decltype(&H::member), decltype(&Hook::member)>) set_used(HookPoint::point, false); \
  }
  DUET_HOOK_POINTS(DUET_NOTE)
  DUET_NOTE(kInStep, in_step)
#undef DUET_NOTE
}

// The hook, knowing which points its type leaves empty; to be called where the type is still known.
template <class H>
std::unique_ptr<Hook> as_hook(std::unique_ptr<H> hook) {
  static_assert(std::is_base_of_v<Hook, H>, "as_hook takes a hook");
  if constexpr (!std::is_same_v<H, Hook>) {
    if (hook != nullptr) {
      const Hook& object = *hook;
      if (typeid(object) == typeid(H)) hook->template note_inherited<H>();
    }
  }
  return hook;
}

// Lambdas as one hook, with a name, a priority and others that it comes after; BaseTrainer::on() does for a single one.
// Points without a lambda cost nothing. Several lambdas of a point run in the order they were given in. Give all of
// them before the hook is added to a trainer, which may capture what acts inside of steps.
// It has a member for each point of a run.
class CallbackHook : public Hook {
 public:
  using Callback = std::function<void(TrainContext&)>;
  using StepCallback = std::function<void(StepView&)>;

  // `after`: names of hooks that must run before this one.
  explicit CallbackHook(std::string name, int priority = kNormal, std::vector<std::string> after = {});

  // Throws ConfigError for an empty callback, and for kInStep, which on_step() is for.
  CallbackHook& on(HookPoint point, Callback callback);
  // Tensor code of the step itself, without host reads: see Hook::in_step.
  CallbackHook& on_step(StepCallback callback);
  // Its callbacks look at the model's outputs: see Hook::wants_outputs.
  CallbackHook& want_outputs() {
    wants_outputs_ = true;
    return *this;
  }

  std::string name() const override { return name_; }
  int priority() const override { return priority_; }
  std::vector<std::string> after() const override { return after_; }

#define DUET_CALL(point, member) \
  void member(TrainContext& run) override { call(HookPoint::point, run); }
  DUET_HOOK_POINTS(DUET_CALL)
#undef DUET_CALL
  void in_step(StepView& context) override;
  bool wants_outputs() const override { return wants_outputs_; }

 private:
  void call(HookPoint point, TrainContext& context);

  std::string name_;
  int priority_;
  std::vector<std::string> after_;
  std::map<HookPoint, std::vector<Callback>> callbacks_;
  std::vector<StepCallback> step_callbacks_;
  bool wants_outputs_ = false;
};

// Where a hook stands and why.
struct HookPlace {
  std::string name;
  int priority = 0;
  std::string reason;  // "priority 40 instead of its own NORMAL (50); after ema, as it declares"
};

// Owns the hooks of a trainer and calls them in one order at every point: by priority, ties by
// registration, declared "after" relations above both.
class HookList : public Stateful {
 public:
  // Throws ConfigError if the name is taken, empty or has a dot, the priority is outside [0, 100], or the relations
  // of after() form a circle. A hook named in after() may be added later, or be absent.
  // `priority` takes the place of the hook's own.
  void add(std::unique_ptr<Hook> hook, std::optional<int> priority = std::nullopt);
  template <class H>
  void add(std::unique_ptr<H> hook, std::optional<int> priority = std::nullopt) {
    add(as_hook(std::move(hook)), priority);
  }
  // A hook of its own that calls `callback` at `point`. Throws ConfigError for in_step: see CallbackHook::on_step.
  void on(HookPoint point, std::function<void(TrainContext&)> callback, std::string name = "", int priority = kNormal);

  // Calls `point` of every hook. duet's errors and std::runtime_error leave with hook, point and step before their
  // text, LibTorch's as std::runtime_error without their stack trace; other exceptions leave as they are, after a line
  // in the log. after_train, after_test, after_predict, after_run, on_exception and after_load_checkpoint reach every
  // hook before the first error is rethrown.
  void call(HookPoint point, TrainContext& context);
  // Of the hooks alone that keep no state: what they have set at this point no checkpoint gives back.
  void call_stateless(HookPoint point, TrainContext& context);
  void in_step(StepView& context);
  // Ends the profiler's span of the hook point that runs now in this thread, "hook:<name>:<point>". For a hook that
  // begins or ends a span of its own there which outlives the call, as spans of one thread must lie within or beside
  // each other. Nothing happens outside of a hook point.
  static void end_span();

  // Whether any hook may act at `point`.
  bool uses(HookPoint point) const;
  // Whether any hook does.
  bool wants_outputs() const;

  Hook* find(const std::string& name) const;
  std::vector<std::string> order() const;
  // The hooks that may act at `point`, in calling order, each with the reason for its place.
  std::vector<HookPlace> places(HookPoint point) const;
  // In force for the hook called `name`. Throws ConfigError if there is none.
  int priority_of(const std::string& name) const;
  std::size_t size() const { return hooks_.size(); }

  StateDict state_dict() const override;
  // Hooks without state in `state` keep theirs. Where one cannot take its own, those before it have taken theirs.
  void load_state_dict(const StateDict& state) override;
  // Gives every hook what state_dict() gave before, also if that was nothing. What one throws is logged.
  void restore(const StateDict& before);

 private:
  struct Entry {
    std::unique_ptr<Hook> hook;
    int priority = 0;
  };
  template <class TakesPart>
  void call(HookPoint point, TrainContext& context, TakesPart takes_part);
  const Entry* entry(const std::string& name) const;              // null: none
  std::vector<const Entry*> predecessors(const Entry& of) const;  // that its after() names
  std::vector<Hook*> sorted() const;

  std::vector<Entry> hooks_;  // in order of registration
  std::vector<Hook*> order_;  // in calling order
  int64_t step_ = 0;          // of the last call, for messages of in_step
  int calls_ = 0;             // under way
};

}  // namespace duet
