#include <cmath>
#include <optional>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/log.h"
#include "cli/config/run_config.h"
#include "optim/groups/detail/param_group_builder.h"

namespace duet {

void fit_batch_size(ConfigNode root, int64_t world_size) {
  const ConfigNode trainer = root.child("trainer"), train = root.child("data").child("train");
  if (!trainer.find<int64_t>("global_batch_size") || !train.is_set()) return;
  const int64_t global = trainer.read_int("global_batch_size", 0, 1);
  const auto batch_size = train.find<int64_t>("batch_size"), accumulate = trainer.find<int64_t>("accumulate");
  if (batch_size.value_or(1) < 1 || accumulate.value_or(1) < 1) return;  // said where they are read
  const double product = static_cast<double>(world_size) * static_cast<double>(batch_size.value_or(1)) *
                         static_cast<double>(accumulate.value_or(1));
  const bool has_all = batch_size && accumulate;
  const auto wanted = static_cast<double>(global);
  if (has_all ? product != wanted : std::fmod(wanted, product) != 0) {
    std::string parts = c10::str(world_size, world_size == 1 ? " process" : " processes");
    if (batch_size) parts += c10::str(" * data.train.batch_size = ", *batch_size);
    if (accumulate) parts += c10::str(" * trainer.accumulate = ", *accumulate);
    trainer.fail("global_batch_size", c10::str("is ", global, ", expected ", has_all ? "" : "a multiple of ", parts,
                                               "; change it, or leave out one of the others"));
  }
  if (has_all) return;
  const int64_t rest = global / static_cast<int64_t>(product);
  root.override_with(c10::str(batch_size ? "trainer.accumulate=" : "data.train.batch_size=", rest),
                     "trainer.global_batch_size");
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
