#include <string>
#include "base/error.h"
#include "hooks/checkpoint_hook.h"
#include "metrics/metric.h"

namespace duet {

const OptionFields& CheckpointHookOptions::fields() {
  using O = CheckpointHookOptions;
  return described<O>("CheckpointHook", [](const auto& add) {
    add("interval", &O::interval, "steps between saves; 0: only at the end")
        .in(at_least(0))
        .expects("steps >= 0; set 0 to save only at the end");
    add.key("by_epoch", "true/false", "interval counts epochs", "false");
    add("interval_time", &O::interval_time, "time between saves, counted from the last one; 0: they go by steps alone")
        .in(at_least(0))
        .expects("seconds >= 0; set 0 to save by steps alone")
        .read_by_hand("time: seconds, 1h30m, or days:hours:minutes:seconds");
    add("save_begin", &O::save_begin, "step before which nothing is saved, and from which the interval counts")
        .in(at_least(0))
        .expects("a step >= 0");
    add("max_keep", &O::max_keep, "checkpoints that are kept, the best one apart, and never fewer than 2; -1: all")
        .in(at_least(-1))
        .expects("at least 1, or -1 to keep all")
        .also_keyed("max_keep_ckpts");
    add("save_last", &O::save_last, "saves when training ends or is stopped");
    add("rule", &O::rule, "what is better; by default the metric's name says it")
        .called("greater, less")
        .one_of({"", "greater", "less"});
    add("save_best", &O::save_best, "metric to keep the best of")
        .called("auto, or the name of a metric; or a list of such")
        .one_or_list();
    add("save_top_k", &O::save_top_k, "how many of the best are kept by each metric").in(at_least(1));
    add("best_weights_only", &O::best_weights_only, "the best ones are files of the evaluated weights alone");
    add("async", &O::async, "writes while training goes on; takes the memory of a copy on the host");
    add("verify_interval", &O::verify_interval,
        "saves up to the next one that is read back from the disk and compared; 0: none is")
        .in(at_least(0))
        .expects("saves >= 0; set 0 to read none back");
    add("published_keys", &O::published_keys, "what of the state goes to files of its own when the run ends")
        .called("list of names such as model, hooks.ema.weights")
        .one_or_list();
    add("out_dir", &O::out_dir, "folder for the checkpoints, in one named as work_dir; empty: they lie in work_dir");
    add.rule([](const O& o) {
      require<ConfigError>(o.max_keep != 0, "[CheckpointHook] max_keep is 0, expected at least 1, or -1 to keep all");
      for (const std::string& metric : o.save_best) {
        if (metric != "auto") less_is_better("CheckpointHook", metric, o.rule);
      }
    });
  });
}

}  // namespace duet
