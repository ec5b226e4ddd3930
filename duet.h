#pragma once

// Everything of duet's library, and the table of its contents.

// core: the loop and the words it speaks
#include <duet/core/batch.h>              // Batch, Window: named tensors of a micro-batch, an update's micro-batches
#include <duet/core/checkpoint.h>         // CheckpointStore: atomic, verified save and load
#include <duet/core/data_loader.h>        // DataLoader: prefetching, ordered, resumable
#include <duet/core/data_source.h>        // DataSource: whatever yields micro-batches
#include <duet/core/dataset.h>            // Dataset: indexed samples
#include <duet/core/device.h>             // parse_device
#include <duet/core/error.h>              // Error and its four kinds
#include <duet/core/fashion_mnist.h>      // FashionMnist and any IDX image set
#include <duet/core/hook.h>               // Hook: the points of a run
#include <duet/core/hook_list.h>          // HookList: their order
#include <duet/core/hyper_parameters.h>   // HyperParameters: lr and its like
#include <duet/core/idx.h>                // IDX reader, plain and gzip
#include <duet/core/log.h>                // log_info and its like
#include <duet/core/metric.h>             // Metric, MeanLoss, Accuracy
#include <duet/core/module_info.h>        // the layers of a model, as rules for parameter groups see them
#include <duet/core/module_task.h>        // make_task: a Task from a module and a loss function
#include <duet/core/random.h>             // seed_all, random_state
#include <duet/core/safetensors.h>        // safetensors files
#include <duet/core/sampler.h>            // EpochSampler, InfiniteSampler
#include <duet/core/script_task.h>        // a TorchScript file as a Task
#include <duet/core/state_dict.h>         // StateDict, Stateful
#include <duet/core/task.h>               // Task: what you write
#include <duet/core/tensor_dataset.h>     // samples from tensors or a safetensors file
#include <duet/core/text_dataset.h>       // characters of a text file
#include <duet/core/train_context.h>      // TrainContext: what a hook sees
#include <duet/core/trainer.h>            // BaseTrainer: the loop
#include <duet/core/update_rule.h>        // UpdateRule: window in, new weights out

// optim: gradients into weights
#include <duet/optim/autocast.h>          // AutocastGuard
#include <duet/optim/grad_scaler.h>       // LossScaleOptions, GradScaler: float16 training without a host read
#include <duet/optim/gradient_verdict.h>  // ClipGradOptions
#include <duet/optim/layer_decay.h>       // groups whose learning rate falls with the distance from the output
#include <duet/optim/layer_depth.h>       // depths of ConvNeXt, BEiT, MAE, ViT
#include <duet/optim/optimizer.h>         // Optimizer: gradients into weights, state on the device
#include <duet/optim/optimizer_options.h> // SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Lion, Muon, LBFGS
#include <duet/optim/param_group.h>       // ParamGroup: parameters with numbers of their own
#include <duet/optim/paramwise.h>         // groups by paramwise_cfg
#include <duet/optim/plateau.h>           // PlateauWatch: has a metric stopped improving?
#include <duet/optim/schedule.h>          // ScheduleOptions: numbers of the optimizer as closed forms
#include <duet/optim/schedule_curve.h>    // ScheduleCurve: schedules laid over a run
#include <duet/optim/trainer_options.h>   // TrainerOptions: what either trainer is built from
#include <duet/optim/update.h>            // Update: the one update of both modes
#include <duet/optim/weight_average.h>    // WeightAverage: mmengine's three averages, inside the update

// the two modes
#include <duet/eager/eager_trainer.h>     // EagerTrainer: op by op
#include <duet/graph/graph_options.h>     // GraphOptions, SignatureReport
#include <duet/graph/graph_trainer.h>     // GraphTrainer: captured and replayed

// hooks
#include <duet/hooks/checkpoint_hook.h>       // 90: interval, keep, best
#include <duet/hooks/default_hooks.h>         // the standard list
#include <duet/hooks/ema_hook.h>              // 50: an average of the weights
#include <duet/hooks/iter_timer_hook.h>       // 50: data and update times
#include <duet/hooks/logger_hook.h>           // 60: terminal and JSONL
#include <duet/hooks/param_scheduler_hook.h>  // 70: schedules
