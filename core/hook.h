#pragma once

#include "priority.h"
#include "../base/state_dict.h"
#include "train_context.h"

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace duet {

enum class HookPoint : int {
  kBeforeRun, kAfterRun, kBeforeTrain, kAfterTrain, kBeforeTrainEpoch, kAfterTrainEpoch,
  kBeforeTrainIter, kAfterTrainIter,
  kBeforeVal, kAfterVal, kBeforeValEpoch, kAfterValEpoch, kBeforeValIter, kAfterValIter,
  kBeforeTest, kAfterTest, kBeforeTestEpoch, kAfterTestEpoch, kBeforeTestIter, kAfterTestIter,
  kBeforePredict, kAfterPredict, kBeforePredictEpoch, kAfterPredictEpoch, kBeforePredictIter, kAfterPredictIter,
  kBeforeSaveCheckpoint, kAfterLoadCheckpoint,
  kAfterBackward, kBeforeOptimizerStep, kAfterOptimizerStep, kOnException,
  kInStep,
  kCount,
};

const char* to_string(HookPoint point);

// Something that happens around steps. Override the points you need; the rest cost nothing. A *_iter
// point ticks once per step, in the same order in both modes:
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
// BaseTrainer::step() in a loop of the user's own has the same points but those of epochs; finish() ends it.
//
// A hook that overrides after_backward or before_optimizer_step makes GraphTrainer split its captured
// step there. What it changes in place (a gradient, a weight) counts; reading a value there costs a sync.
class Hook : public Stateful {
 public:
  // Names the hook's state in a checkpoint, and the hook in messages. Unique within a list.
  virtual std::string name() const = 0;
  virtual int priority() const { return kNormal; }
  // Names of hooks that must run before this one at every point, whatever the priorities.
  virtual std::vector<std::string> after() const { return {}; }

  virtual void before_run(TrainContext&) { unused(HookPoint::kBeforeRun); }
  virtual void after_run(TrainContext&) { unused(HookPoint::kAfterRun); }
  virtual void before_train(TrainContext&) { unused(HookPoint::kBeforeTrain); }
  virtual void after_train(TrainContext&) { unused(HookPoint::kAfterTrain); }
  virtual void before_train_epoch(TrainContext&) { unused(HookPoint::kBeforeTrainEpoch); }
  virtual void after_train_epoch(TrainContext&) { unused(HookPoint::kAfterTrainEpoch); }
  virtual void before_train_iter(TrainContext&) { unused(HookPoint::kBeforeTrainIter); }
  virtual void after_train_iter(TrainContext&) { unused(HookPoint::kAfterTrainIter); }

  virtual void before_val(TrainContext&) { unused(HookPoint::kBeforeVal); }
  virtual void after_val(TrainContext&) { unused(HookPoint::kAfterVal); }
  virtual void before_val_epoch(TrainContext&) { unused(HookPoint::kBeforeValEpoch); }
  virtual void after_val_epoch(TrainContext&) { unused(HookPoint::kAfterValEpoch); }
  virtual void before_val_iter(TrainContext&) { unused(HookPoint::kBeforeValIter); }
  virtual void after_val_iter(TrainContext&) { unused(HookPoint::kAfterValIter); }

  virtual void before_test(TrainContext&) { unused(HookPoint::kBeforeTest); }
  virtual void after_test(TrainContext&) { unused(HookPoint::kAfterTest); }
  virtual void before_test_epoch(TrainContext&) { unused(HookPoint::kBeforeTestEpoch); }
  virtual void after_test_epoch(TrainContext&) { unused(HookPoint::kAfterTestEpoch); }
  virtual void before_test_iter(TrainContext&) { unused(HookPoint::kBeforeTestIter); }
  virtual void after_test_iter(TrainContext&) { unused(HookPoint::kAfterTestIter); }

  virtual void before_predict(TrainContext&) { unused(HookPoint::kBeforePredict); }
  virtual void after_predict(TrainContext&) { unused(HookPoint::kAfterPredict); }
  virtual void before_predict_epoch(TrainContext&) { unused(HookPoint::kBeforePredictEpoch); }
  virtual void after_predict_epoch(TrainContext&) { unused(HookPoint::kAfterPredictEpoch); }
  virtual void before_predict_iter(TrainContext&) { unused(HookPoint::kBeforePredictIter); }
  virtual void after_predict_iter(TrainContext&) { unused(HookPoint::kAfterPredictIter); }

  // Before the trainer's whole state is taken, by CheckpointHook or BaseTrainer::save(); and after one was loaded.
  virtual void before_save_checkpoint(TrainContext&) { unused(HookPoint::kBeforeSaveCheckpoint); }
  virtual void after_load_checkpoint(TrainContext&) { unused(HookPoint::kAfterLoadCheckpoint); }

  // After the last backward of the step; gradients as they are before clipping, still multiplied by the loss scale if
  // there is one.
  virtual void after_backward(TrainContext&) { unused(HookPoint::kAfterBackward); }
  // The norm is known; the gradients are not scaled yet (the optimizer's kernel does it).
  virtual void before_optimizer_step(TrainContext&) { unused(HookPoint::kBeforeOptimizerStep); }
  virtual void after_optimizer_step(TrainContext&) { unused(HookPoint::kAfterOptimizerStep); }
  // Tensor code that belongs to the step: runs after the optimizer and is captured with it. No host reads.
  virtual void in_step(StepView&) { unused(HookPoint::kInStep); }

  // An exception leaves the loop; context.control.error says which.
  virtual void on_exception(TrainContext&) { unused(HookPoint::kOnException); }

  // Whether the hook may act at `point`. If its type was not known when it was added to a trainer (see as_hook), true
  // until its own empty default has been reached there once.
  bool uses(HookPoint point) const { return (unused_ >> static_cast<int>(point) & 1U) == 0; }

 protected:
  // For a hook that learns at run time where it acts.
  void set_used(HookPoint point, bool used) {
    const uint64_t bit = uint64_t{1} << static_cast<int>(point);
    unused_ = used ? unused_ & ~bit : unused_ | bit;
  }

 private:
  template <class H>
  friend std::unique_ptr<Hook> as_hook(std::unique_ptr<H> hook);

  void unused(HookPoint point) { set_used(point, false); }
  template <class H>
  void note_inherited();

  uint64_t unused_ = 0;
};

// A member pointer names the class that defines the member: a point is left empty if that is Hook itself. A member that
// cannot be named from here (a private one) counts as used.
template <class H>
void Hook::note_inherited() {
#define DUET_NOTE(point, member)                                                                                \
  if constexpr (requires { &H::member; }) {                                                                     \
    if constexpr (std::is_same_v<decltype(&H::member), decltype(&Hook::member)>) unused(HookPoint::point);      \
  }
  DUET_NOTE(kBeforeRun, before_run)
  DUET_NOTE(kAfterRun, after_run)
  DUET_NOTE(kBeforeTrain, before_train)
  DUET_NOTE(kAfterTrain, after_train)
  DUET_NOTE(kBeforeTrainEpoch, before_train_epoch)
  DUET_NOTE(kAfterTrainEpoch, after_train_epoch)
  DUET_NOTE(kBeforeTrainIter, before_train_iter)
  DUET_NOTE(kAfterTrainIter, after_train_iter)
  DUET_NOTE(kBeforeVal, before_val)
  DUET_NOTE(kAfterVal, after_val)
  DUET_NOTE(kBeforeValEpoch, before_val_epoch)
  DUET_NOTE(kAfterValEpoch, after_val_epoch)
  DUET_NOTE(kBeforeValIter, before_val_iter)
  DUET_NOTE(kAfterValIter, after_val_iter)
  DUET_NOTE(kBeforeTest, before_test)
  DUET_NOTE(kAfterTest, after_test)
  DUET_NOTE(kBeforeTestEpoch, before_test_epoch)
  DUET_NOTE(kAfterTestEpoch, after_test_epoch)
  DUET_NOTE(kBeforeTestIter, before_test_iter)
  DUET_NOTE(kAfterTestIter, after_test_iter)
  DUET_NOTE(kBeforePredict, before_predict)
  DUET_NOTE(kAfterPredict, after_predict)
  DUET_NOTE(kBeforePredictEpoch, before_predict_epoch)
  DUET_NOTE(kAfterPredictEpoch, after_predict_epoch)
  DUET_NOTE(kBeforePredictIter, before_predict_iter)
  DUET_NOTE(kAfterPredictIter, after_predict_iter)
  DUET_NOTE(kBeforeSaveCheckpoint, before_save_checkpoint)
  DUET_NOTE(kAfterLoadCheckpoint, after_load_checkpoint)
  DUET_NOTE(kAfterBackward, after_backward)
  DUET_NOTE(kBeforeOptimizerStep, before_optimizer_step)
  DUET_NOTE(kAfterOptimizerStep, after_optimizer_step)
  DUET_NOTE(kOnException, on_exception)
  DUET_NOTE(kInStep, in_step)
#undef DUET_NOTE
}

// The hook, knowing which points its type leaves empty. Whoever passes a std::unique_ptr<Hook> on uses it where the type
// is still known.
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

}  // namespace duet
