#pragma once

// Everything of duet's library, and the table of its contents.

// base: the words all share
#include "base/batch.h"       // Batch: named tensors of a micro-batch
#include "base/device.h"      // parse_device; seed_all, random_state
#include "base/error.h"       // Error and its kinds
#include "base/log.h"         // log_info and its like
#include "base/options.h"     // OptionFields: an options struct described once
#include "base/state_dict.h"  // StateDict, Stateful

// data: from samples to batches
#include "data/data_loader.h"   // DataLoader: prefetching, ordered, resumable, each rank its part
#include "data/data_source.h"   // DataSource: whatever yields micro-batches; DataShard: the part of one rank
#include "data/dataset.h"       // Dataset: samples of tensors or text; SubsetDataset, RepeatDataset, ConcatDataset
#include "data/file_dataset.h"  // ImageFolder, CsvDataset: pictures and tables of your own
#include "data/sampler.h"       // EpochSampler, InfiniteSampler; DistributedSampler: each rank its share
#include "data/transform.h"     // Transform: crops, flips, ...; random numbers of each sample

// metrics: figures over an evaluation
#include "metrics/class_metric.h"  // over classes: Accuracy, ConfusionMatrix, F1, IoUMetric, and ClassMetric for your own
#include "metrics/metric.h"        // Metric, MeanLoss, Perplexity
#include "metrics/probability_metric.h"  // Auroc, AveragePrecision, CalibrationError
#include "metrics/regression_metric.h"   // MeanSquaredError, MeanAbsoluteError, R2Score

// checkpoint: states and weights on disk
#include "checkpoint/checkpoint.h"    // CheckpointStore: atomic, verified save and load
#include "checkpoint/weights_file.h"  // weights from and to checkpoints, safetensors, .pt

// distributed: several processes that train one model, or one
#include "distributed/communicator.h"  // Communicator: the ranks that train together; init_distributed(): where they meet

// optim: gradients into weights
#include "optim/groups/param_group.h"  // ParamGroup: parameters with HyperParameters (lr, ...) of their own; rules
#include "optim/optimizers/optimizer_kind.h"     // OptimizerKind: an optimizer of your own
#include "optim/optimizers/optimizer_options.h"  // SGD, Adam, ... LBFGS; ClipNorm, ...; LossScaleOptions
#include "optim/schedules/schedule.h"            // Linear, Cosine, ...: hyper-parameters as closed forms
#include "optim/weight_average.h"                // WeightAverage: mmengine's three averages, inside the step

// core: the run
#include "core/hook.h"             // Hook: the points of a run; HookList: their order; CallbackHook
#include "core/losses.h"           // losses by name: cross entropy, focal, dice, mse, l1, huber, bce
#include "core/model_file.h"       // a file of TorchScript or torch.export as a Task
#include "core/task.h"             // Task: what you write; make_task from a module and a loss function
#include "core/train_context.h"    // TrainContext: what a hook sees; RunLog; MicroBatches, StepResult
#include "core/trainer.h"          // BaseTrainer: the loop
#include "core/trainer_options.h"  // TrainerOptions, LoopOptions: what either trainer is built from

// the two modes
#include "eager/eager_trainer.h"  // EagerTrainer: op by op, what you debug with
#include "graph/graph_options.h"  // GraphOptions, SignatureReport
#include "graph/graph_trainer.h"  // GraphTrainer: captured and replayed, what you train with; GraphStep: its step alone
#include "make_trainer.h"         // make_trainer: either one, the mode as a value

// hooks: what happens around a step (the number is the priority)
#include "hooks/checkpoint_hook.h"      // 90: interval, keep, best
#include "hooks/default_hooks.h"        // the standard list, with those that have no options: times, lr and memory
#include "hooks/early_stopping_hook.h"  // 100: ends training when a metric no longer improves
#include "hooks/ema_hook.h"             // 50: an average of the weights
#include "hooks/epoch_hooks.h"  // 50: after epochs, the same buffers in every process, unused memory back to the device
#include "hooks/histogram_hook.h"    // 50: how values of weights and gradients are spread
#include "hooks/logger_hook.h"       // 60: lines on the terminal, in JSONL, TensorBoard, W&B; LogSink: your own
#include "hooks/nan_guard_hook.h"    // 40: finds out about NaN, never saves one
#include "hooks/precise_bn_hook.h"   // 55: running statistics of batch norm recomputed before a validation
#include "hooks/prediction_hooks.h"  // 50: predictions as safetensors and JSONL, and pictures of them
#include "hooks/profiler_hook.h"     // 90: Chrome traces, NVTX ranges
#include "hooks/stop_signal_hook.h"  // 10: SIGINT, SIGTERM, SIGUSR1, ... end a run well
#include "hooks/throughput_hook.h"   // 55: tokens per second, FLOPs per step, MFU
