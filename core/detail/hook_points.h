#pragma once

// Every point of a run that takes a TrainContext, as X(enumerator of HookPoint, member of Hook). The one place that
// spells them: the enum, Hook's members, their names, CallbackHook and the tests are made from it.
#define DUET_HOOK_POINTS(X)                                                                                 \
  X(kBeforeRun, before_run)                                                                                 \
  X(kAfterRun, after_run)                                                                                   \
  X(kBeforeTrain, before_train)                                                                             \
  X(kAfterTrain, after_train)                                                                               \
  X(kBeforeTrainEpoch, before_train_epoch)                                                                  \
  X(kAfterTrainEpoch, after_train_epoch)                                                                    \
  X(kBeforeTrainIter, before_train_iter)                                                                    \
  X(kAfterTrainIter, after_train_iter)                                                                      \
  X(kBeforeVal, before_val)                                                                                 \
  X(kAfterVal, after_val)                                                                                   \
  X(kBeforeValEpoch, before_val_epoch)                                                                      \
  X(kAfterValEpoch, after_val_epoch)                                                                        \
  X(kBeforeValIter, before_val_iter)                                                                        \
  X(kAfterValIter, after_val_iter)                                                                          \
  X(kBeforeTest, before_test)                                                                               \
  X(kAfterTest, after_test)                                                                                 \
  X(kBeforeTestEpoch, before_test_epoch)                                                                    \
  X(kAfterTestEpoch, after_test_epoch)                                                                      \
  X(kBeforeTestIter, before_test_iter)                                                                      \
  X(kAfterTestIter, after_test_iter)                                                                        \
  X(kBeforePredict, before_predict)                                                                         \
  X(kAfterPredict, after_predict)                                                                           \
  X(kBeforePredictEpoch, before_predict_epoch)                                                              \
  X(kAfterPredictEpoch, after_predict_epoch)                                                                \
  X(kBeforePredictIter, before_predict_iter)                                                                \
  X(kAfterPredictIter, after_predict_iter)                                                                  \
  /* Before the trainer's whole state is taken, by CheckpointHook or BaseTrainer::save(). */                \
  X(kBeforeSaveCheckpoint, before_save_checkpoint)                                                          \
  X(kAfterLoadCheckpoint, after_load_checkpoint)                                                            \
  /* After the step's last backward; gradients before clipping, still multiplied by the loss scale. */      \
  X(kAfterBackward, after_backward)                                                                         \
  /* The norm is known; the gradients are not scaled yet (the optimizer's kernel does it). */               \
  X(kBeforeOptimizerStep, before_optimizer_step)                                                            \
  X(kAfterOptimizerStep, after_optimizer_step)                                                              \
  /* An exception leaves the loop; TrainContext::control.error says which. */                               \
  X(kOnException, on_exception)
