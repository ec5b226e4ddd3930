#pragma once

#include <duet/core/batch.h>
#include <duet/core/state_dict.h>
#include <duet/core/update_rule.h>

#include <cstdint>
#include <map>
#include <string>

namespace duet {

class Task;

using MetricValues = std::map<std::string, double>;

// What a hook may see and do, lent to it for one call. Counters count finished updates.
struct TrainContext {
  Task& task;
  HyperParameters& hyper_parameters;
  Stateful& trainer_state;  // everything a bit-exact resume needs, hooks included; taking it calls before_save_checkpoint
  std::string mode;         // "eager" or "graph"
  std::string work_dir;     // empty: nothing is written

  int64_t update = 0;       // finished updates of the whole run
  int64_t max_updates = 0;  // 0: no limit
  int64_t epoch = 0;        // epoch that runs now, from 0
  int64_t max_epochs = 0;   // 0: no limit
  int64_t updates_per_epoch = 0;  // 0: unknown
  int64_t update_in_epoch = 0;

  const Window* window = nullptr;        // the update's micro-batches; *_train_iter points
  const UpdateOutput* output = nullptr;  // its results on the device; after_train_iter and update points
  const Batch* batch = nullptr;          // val, test and predict iters
  const NamedTensors* outputs = nullptr; // after_{val,test,predict}_iter
  int64_t iter = 0;                      // index of that batch
  MetricValues metrics{};                  // results of the last evaluation; after_{val,test}_epoch on
  double data_seconds = 0;               // time the loop waited for this update's data
  double update_seconds = 0;             // time of the whole update with its data; set by IterTimerHook
  std::string error{};                     // on_exception, and after_train/after_run of a failed run

  // Ends training after this update; after_train runs as usual.
  void request_stop(const std::string& reason) {
    if (stop_reason.empty()) stop_reason = reason.empty() ? "a hook asked" : reason;
  }
  std::string stop_reason{};

  std::string evaluated_average{};  // the hook whose average of the weights evaluation uses; empty: none so far
};

}  // namespace duet
