#include <cmath>
#include <c10/util/StringUtil.h>
#include "base/log.h"
#include "cli/config/run_config.h"
#include "optim/groups/detail/param_group_builder.h"

namespace duet {

void fit_batch_size(const ConfigNode& root, int64_t world_size, RunConfig& config) {
  const ConfigNode trainer = root.child("trainer"), train = root.child("data").child("train");
  if (!config.train || !trainer.find<int64_t>("global_batch_size")) return;
  const int64_t global = trainer.read_int("global_batch_size", 0, 1);
  int64_t &batch_size = config.train->loader.batch_size, &accumulate = config.trainer.loop.accumulate;
  const bool has_size = train.child("batch_size").is_set(), has_accumulate = trainer.child("accumulate").is_set();
  const double given = static_cast<double>(world_size) * static_cast<double>(has_size ? batch_size : 1) *
                       static_cast<double>(has_accumulate ? accumulate : 1);
  const double rest = static_cast<double>(global) / given;
  const bool has_all = has_size && has_accumulate;
  if (has_all ? rest != 1 : rest != std::floor(rest)) {
    trainer.fail("global_batch_size",
                 c10::str("is ", global, ", expected ", has_all ? "" : "a multiple of ", given, " = ", world_size,
                          world_size == 1 ? " process" : " processes",
                          " times the batch_size and accumulate that are given; change one of them"));
  }
  if (has_all) return;
  (has_size ? accumulate : batch_size) = static_cast<int64_t>(rest);
  // Saved, the default would be taken for one that is given; another number of processes computes it anew.
  has_size ? trainer.note_default("accumulate", {}) : train.note_default("batch_size", {});
}

void scale_learning_rates(const ConfigNode& root, int64_t batch_size, TrainerOptions& trainer) {
  const ConfigNode node = root.child("auto_scale_lr");
  if (!node.is_set()) return;
  const bool is_enabled = node.read<bool>("enable", false);
  const auto base = node.need<int64_t>("base_batch_size");
  if (base < 1) node.fail_value("base_batch_size", "at least 1");
  if (!is_enabled) return;
  const double ratio = static_cast<double>(batch_size) / static_cast<double>(base);
  log_info(c10::str("auto_scale_lr: learning rates times ", ratio, ": a step has ", batch_size,
                    " samples, base_batch_size is ", base));
  if (trainer.param_groups) {  // whose own rates may be numbers that do not follow the optimizer's
    trainer.param_groups = [make = trainer.param_groups, unscaled = trainer.optimizer, ratio](Task& task,
                                                                                              const OptimizerOptions&) {
      ParamGroups groups = make(task, unscaled);
      for (ParamGroup& group : groups) {
        if (const auto lr = group.numbers.find("lr"); lr != group.numbers.end()) lr->second *= ratio;
      }
      return groups;
    };
  }
  const double lr = base_numbers(trainer.optimizer).at("lr") * ratio;
  node.located([&] { trainer.optimizer.set("lr", lr); });
}

}  // namespace duet
