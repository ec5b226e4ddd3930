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
#include <duet/optim/optimizer.h>         // SGD, Adam, AdamW on device-side state
#include <duet/optim/schedule.h>          // learning rates as closed forms
#include <duet/optim/trainer_options.h>   // TrainerOptions: what either trainer is built from
#include <duet/optim/update.h>            // Update: the one update of both modes

// the two modes
#include <duet/eager/eager_trainer.h>     // EagerTrainer: op by op
#include <duet/graph/graph_options.h>     // GraphOptions, SignatureReport
#include <duet/graph/graph_trainer.h>     // GraphTrainer: captured and replayed

// hooks
#include <duet/hooks/checkpoint_hook.h>       // 90: interval, keep, best
#include <duet/hooks/default_hooks.h>         // the standard list
#include <duet/hooks/iter_timer_hook.h>       // 50: data and update times
#include <duet/hooks/logger_hook.h>           // 60: terminal and JSONL
#include <duet/hooks/param_scheduler_hook.h>  // 70: learning-rate schedules
