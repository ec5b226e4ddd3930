#pragma once

// Everything of duet's library, and the table of its contents.

// core: the loop and the words it speaks
#include <duet/core/batch.h>             // Batch, Window: named tensors of a micro-batch, an update's micro-batches
#include <duet/core/device.h>            // parse_device
#include <duet/core/error.h>             // Error and its four kinds
#include <duet/core/hook.h>              // Hook: the points of a run
#include <duet/core/hook_list.h>         // HookList: their order
#include <duet/core/hyper_parameters.h>  // HyperParameters: lr and its like
#include <duet/core/log.h>               // log_info and its like
#include <duet/core/loop_options.h>      // LoopOptions: limits, accumulation, validation
#include <duet/core/message_hub.h>       // MessageHub: what components want logged
#include <duet/core/peak_memory.h>       // most memory in use, of the process or a GPU
#include <duet/core/priority.h>          // Priority: names and numbers of a hook's place
#include <duet/core/random.h>            // seed_all, random_state
#include <duet/core/state_dict.h>        // StateDict, Stateful
#include <duet/core/task.h>              // Task: what you write
#include <duet/core/train_context.h>     // TrainContext: what a hook sees
#include <duet/core/trainer.h>           // BaseTrainer: the loop
#include <duet/core/update_rule.h>       // UpdateRule: window in, new weights out

// core/data: from samples to batches
#include <duet/core/data/data_loader.h>          // DataLoader: prefetching, ordered, resumable
#include <duet/core/data/data_share.h>           // DataShare: the part of it that one rank reads
#include <duet/core/data/data_source.h>          // DataSource: whatever yields micro-batches
#include <duet/core/data/dataset.h>              // Dataset: indexed samples
#include <duet/core/data/distributed_sampler.h>  // each rank its share of the samples
#include <duet/core/data/fashion_mnist.h>        // FashionMnist and any IDX image set
#include <duet/core/data/fashion_scenes.h>       // FashionScenes: its images put together, for segmentation
#include <duet/core/data/sampler.h>              // EpochSampler, InfiniteSampler
#include <duet/core/data/tensor_dataset.h>       // samples from tensors or a safetensors file
#include <duet/core/data/text_dataset.h>         // characters of a text file

// core/model: what is trained
#include <duet/core/model/module_info.h>  // the layers of a model, as rules for parameter groups see them
#include <duet/core/model/module_task.h>  // make_task: a Task from a module and a loss function
#include <duet/core/model/script_task.h>  // a TorchScript file as a Task
#include <duet/core/model/tied_names.h>   // tied weights: one tensor, several names

// core/metrics: figures over an evaluation
#include <duet/core/metrics/accuracy.h>          // Accuracy, top-k
#include <duet/core/metrics/class_metric.h>      // ClassMetric: what follows from a confusion matrix
#include <duet/core/metrics/confusion_matrix.h>  // ConfusionMatrix: which classes are taken for which
#include <duet/core/metrics/f1.h>                // F1: macro, micro, weighted, per class
#include <duet/core/metrics/iou_metric.h>        // IoUMetric: mIoU, mDice, mFscore
#include <duet/core/metrics/metric.h>            // Metric, MeanLoss
#include <duet/core/metrics/metric_rule.h>       // is less of it better?
#include <duet/core/metrics/perplexity.h>        // Perplexity: exp of the mean loss
#include <duet/core/metrics/weighted_mean.h>     // WeightedMean: what MeanLoss and Perplexity sum

// core/checkpoint: states and weights on disk
#include <duet/core/checkpoint/checkpoint.h>      // CheckpointStore: atomic, verified save and load
#include <duet/core/checkpoint/weights_file.h>    // weights from and to anything: checkpoints, safetensors, .pt
#include <duet/core/checkpoint/weights_report.h>  // loading what fits, and what did not

// core/files: formats
#include <duet/core/files/idx.h>          // IDX reader, plain and gzip
#include <duet/core/files/png.h>          // pictures as PNG files
#include <duet/core/files/pt_file.h>      // files of torch.save and for torch.load
#include <duet/core/files/safetensors.h>  // safetensors files

// core/comm: several processes
#include <duet/core/comm/collective_ops.h>  // sums over ranks inside a captured update
#include <duet/core/comm/communicator.h>    // Communicator: the ranks that train together
#include <duet/core/comm/connect.h>         // meets the other ranks
#include <duet/core/comm/launch.h>          // Launch: which rank is this? torchrun, SLURM, MPI
#include <duet/core/comm/together.h>        // an error of one rank is an error of all

// optim: gradients into weights
#include <duet/optim/autocast.h>          // AutocastGuard
#include <duet/optim/device_numbers.h>    // DeviceNumbers: lr and its like, as a step reads them
#include <duet/optim/grad_scaler.h>       // LossScaleOptions, GradScaler: float16 training without a host read
#include <duet/optim/gradient_verdict.h>  // ClipGradOptions
#include <duet/optim/trainer_options.h>   // TrainerOptions: what either trainer is built from
#include <duet/optim/update.h>            // Update: the one update of both modes
#include <duet/optim/weight_average.h>    // WeightAverage: mmengine's three averages, inside the update

// optim/optimizers: the rules by name
#include <duet/optim/optimizers/kernel_call.h>        // KernelCall: what an optimizer of your own steps
#include <duet/optim/optimizers/kernel_math.h>        // what steps over tensors have in common
#include <duet/optim/optimizers/optimizer.h>          // Optimizer: gradients into weights, state on the device
#include <duet/optim/optimizers/optimizer_kind.h>     // OptimizerKind: an optimizer of your own
#include <duet/optim/optimizers/optimizer_options.h>  // SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Lion, Muon, LBFGS

// optim/groups: which parameter gets which numbers
#include <duet/optim/groups/layer_decay.h>  // groups whose learning rate falls with the distance from the output
#include <duet/optim/groups/layer_depth.h>  // depths of ConvNeXt, BEiT, MAE, ViT
#include <duet/optim/groups/param_group.h>  // ParamGroup: parameters with numbers of their own
#include <duet/optim/groups/paramwise.h>    // groups by paramwise_cfg

// optim/schedules: numbers over time
#include <duet/optim/schedules/plateau.h>         // PlateauWatch: has a metric stopped improving?
#include <duet/optim/schedules/schedule.h>        // ScheduleOptions: numbers of the optimizer as closed forms
#include <duet/optim/schedules/schedule_curve.h>  // ScheduleCurve: schedules laid over a run

// optim/distributed: gradients of several processes
#include <duet/optim/distributed/distributed_options.h>  // DistributedOptions: buckets, unused parameters

// eager: the mode to debug with
#include <duet/eager/eager_trainer.h>  // EagerTrainer: op by op

// graph: the mode to train with
#include <duet/graph/graph_options.h>  // GraphOptions, SignatureReport
#include <duet/graph/graph_trainer.h>  // GraphTrainer: captured and replayed

// hooks: what happens around an update (the number is the priority)
#include <duet/hooks/callback_hook.h>           // 50: lambdas at any point
#include <duet/hooks/checkpoint_hook.h>         // 90: interval, keep, best
#include <duet/hooks/default_hooks.h>           // the standard list
#include <duet/hooks/dist_sampler_seed_hook.h>  // 50: is the order of the data a new one in each epoch?
#include <duet/hooks/early_stopping_hook.h>     // 100: ends training when a metric no longer improves
#include <duet/hooks/ema_hook.h>                // 50: an average of the weights
#include <duet/hooks/empty_cache_hook.h>        // 50: gives cached memory back to the device
#include <duet/hooks/iter_timer_hook.h>         // 50: data and update times
#include <duet/hooks/log_window.h>              // which numbers are smoothed, and how
#include <duet/hooks/logger_hook.h>             // 60: lines on the terminal, in JSONL, TensorBoard, W&B
#include <duet/hooks/nan_guard_hook.h>          // 40: finds out about NaN, never saves one
#include <duet/hooks/param_scheduler_hook.h>    // 70: schedules
#include <duet/hooks/prediction_writer_hook.h>  // 50: predictions as safetensors and JSONL
#include <duet/hooks/profiler_hook.h>           // 90: Chrome traces, NVTX ranges
#include <duet/hooks/runtime_info_hook.h>       // 10: lr, memory, what runs where
#include <duet/hooks/sample_painter.h>          // one sample and its prediction as a picture
#include <duet/hooks/stop_signal_hook.h>        // 10: SIGINT, SIGTERM, SIGUSR1 end a run well
#include <duet/hooks/sync_buffers_hook.h>       // 50: the same running statistics in every process
#include <duet/hooks/value_history.h>           // the last values of a number, read late
#include <duet/hooks/visualization_hook.h>      // 50: pictures of predictions

// hooks/sinks: where logs go
#include <duet/hooks/sinks/async_sink.h>        // sinks on a thread of their own
#include <duet/hooks/sinks/jsonl_sink.h>        // JSON lines
#include <duet/hooks/sinks/log_sink.h>          // LogSink, LogRecord: the interface
#include <duet/hooks/sinks/tensorboard_sink.h>  // TensorBoard event files
#include <duet/hooks/sinks/terminal_sink.h>     // the log and a progress bar
#include <duet/hooks/sinks/wandb_sink.h>        // what `wandb sync` uploads
