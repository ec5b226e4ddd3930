#pragma once

// Everything of duet's library, and the table of its contents.

// base: the words all share
#include "base/batch.h"       // Batch: named tensors of a micro-batch
#include "base/device.h"      // parse_device
#include "base/error.h"       // Error and its kinds
#include "base/log.h"         // log_info and its like
#include "base/options.h"     // OptionFields: an options struct described once
#include "base/random.h"      // seed_all, random_state
#include "base/state_dict.h"  // StateDict, Stateful

// data: from samples to batches
#include "data/data_loader.h"          // DataLoader: prefetching, ordered, resumable, each rank its part
#include "data/data_shard.h"           // DataShard: the part of it that one rank reads
#include "data/data_source.h"          // DataSource: whatever yields micro-batches
#include "data/dataset.h"              // Dataset: indexed samples
#include "data/distributed_sampler.h"  // each rank its share of the samples
#include "data/sampler.h"              // EpochSampler, InfiniteSampler
#include "data/tensor_dataset.h"       // samples from tensors or a safetensors file
#include "data/text_dataset.h"         // characters of a text file

// metrics: figures over an evaluation
#include "metrics/accuracy.h"          // Accuracy, top-k
#include "metrics/class_metric.h"      // ClassMetric: what follows from a confusion matrix
#include "metrics/confusion_matrix.h"  // ConfusionMatrix: which classes are taken for which
#include "metrics/f1.h"                // F1: macro, micro, weighted, per class
#include "metrics/iou_metric.h"        // IoUMetric: mIoU, mDice, mFscore
#include "metrics/metric.h"            // Metric, MeanLoss
#include "metrics/perplexity.h"        // Perplexity: exp of the mean loss
#include "metrics/weighted_mean.h"     // WeightedMean: what MeanLoss and Perplexity sum

// checkpoint: states and weights on disk
#include "checkpoint/checkpoint.h"    // CheckpointStore: atomic, verified save and load
#include "checkpoint/weights_file.h"  // weights from and to checkpoints, safetensors, .pt

// distributed: several processes that train one model, or one
#include "distributed/communicator.h"      // Communicator: the ranks that train together
#include "distributed/init_distributed.h"  // init_distributed(): torchrun, SLURM, MPI; DistributedOptions

// optim: gradients into weights
#include "optim/amp/autocast.h"                  // AutocastGuard
#include "optim/amp/grad_scaler.h"               // LossScaleOptions, GradScaler: float16 training without a host read
#include "optim/gradient_check.h"                // ClipNorm, ClipValue
#include "optim/groups/layer_decay.h"            // groups whose learning rate falls with the distance from the output
#include "optim/groups/model_info.h"             // the layers of a model, as rules for parameter groups see them
#include "optim/groups/param_group.h"            // ParamGroup: parameters with hyper-parameters of their own
#include "optim/groups/paramwise.h"              // groups by paramwise_cfg
#include "optim/hyper_parameters.h"              // HyperParameters: lr and its like, and their schedules
#include "optim/optimizers/kernel_call.h"        // KernelCall: what an optimizer of your own steps
#include "optim/optimizers/kernel_math.h"        // what steps over tensors have in common
#include "optim/optimizers/optimizer.h"          // Optimizer: gradients into weights, state on the device
#include "optim/optimizers/optimizer_kind.h"     // OptimizerKind: an optimizer of your own
#include "optim/optimizers/optimizer_options.h"  // SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Lion, Muon, LBFGS
#include "optim/schedules/plateau.h"             // PlateauWatch: has a metric stopped improving?
#include "optim/schedules/schedule.h"            // ScheduleOptions: hyper-parameters as closed forms of the step
#include "optim/schedules/schedule_curve.h"      // ScheduleCurve: schedules laid over a run
#include "optim/weight_average.h"                // WeightAverage: mmengine's three averages, inside the step

// core: the run
#include "core/callback_hook.h"  // CallbackHook: lambdas at any point, as one hook
#include "core/hook.h"           // Hook: the points of a run
#include "core/hook_list.h"      // HookList: their order
#include "core/loop_options.h"   // LoopOptions: limits, accumulation, validation
#include "core/module_task.h"    // make_task: a Task from a module and a loss function
#include "core/priority.h"       // Priority: names and numbers of a hook's place
#include "core/run_log.h"        // RunLog: how a value gets into the log
#include "core/script_task.h"    // a TorchScript file as a Task
#include "core/step_executor.h"  // StepExecutor: how a step is run
#include "core/step_observer.h"  // MicroBatches, StepResult, StepObserver: what goes into a step, comes out, acts inside
#include "core/task.h"           // Task: what you write
#include "core/tied_names.h"     // tied weights: one tensor, several names
#include "core/train_context.h"    // TrainContext: what a hook sees
#include "core/train_step.h"       // TrainStep: the one step of both modes
#include "core/trainer.h"          // BaseTrainer: the loop
#include "core/trainer_options.h"  // TrainerOptions: what either trainer is built from
#include "core/weights_report.h"   // loading what fits, and what did not

// the two modes
#include "eager/eager_trainer.h"  // EagerTrainer: op by op, what you debug with
#include "graph/graph_options.h"  // GraphOptions, SignatureReport
#include "graph/graph_trainer.h"  // GraphTrainer: captured and replayed, what you train with
#include "make_trainer.h"         // make_trainer: either one, the mode as a value

// hooks: what happens around a step (the number is the priority)
#include "hooks/checkpoint_hook.h"         // 90: interval, keep, best
#include "hooks/default_hooks.h"           // the standard list, with those that have no options: times, lr and memory
#include "hooks/early_stopping_hook.h"     // 100: ends training when a metric no longer improves
#include "hooks/ema_hook.h"                // 50: an average of the weights
#include "hooks/empty_cache_hook.h"        // 50: gives cached memory back to the device
#include "hooks/log_sink.h"                // LogSink, LogRecord: a place of your own that logs go to
#include "hooks/logger_hook.h"             // 60: lines on the terminal, in JSONL, TensorBoard, W&B
#include "hooks/nan_guard_hook.h"          // 40: finds out about NaN, never saves one
#include "hooks/param_scheduler_hook.h"    // 70: schedules
#include "hooks/prediction_writer_hook.h"  // 50: predictions as safetensors and JSONL
#include "hooks/profiler_hook.h"           // 90: Chrome traces, NVTX ranges
#include "hooks/stop_signal_hook.h"        // 10: SIGINT, SIGTERM, SIGUSR1 end a run well
#include "hooks/sync_buffers_hook.h"       // 50: the same running statistics in every process
#include "hooks/visualization_hook.h"      // 50: pictures of predictions
