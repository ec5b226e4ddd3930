#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include "base/detail/concat_text.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

// What duet calls it, or how to do without.
constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
    // Lightning's Trainer
    {"max_epochs", "trainer.max_epochs"},
    {"max_steps", "trainer.max_steps"},
    {"max_time", "trainer.max_time"},
    {"accumulate_grad_batches", "trainer.accumulate"},
    {"gradient_clip_val", "optim_wrapper.clip_grad.max_norm (or clip_value)"},
    {"gradient_clip_algorithm", "optim_wrapper.clip_grad.type"},
    {"precision", "optim_wrapper.amp"},
    {"limit_train_batches", "trainer.limit_train_batches"},
    {"limit_val_batches", "trainer.limit_val_batches"},
    {"limit_test_batches", "trainer.limit_test_batches"},
    {"limit_predict_batches", "trainer.limit_predict_batches"},
    {"fast_dev_run", "trainer.fast_dev_run"},
    {"check_val_every_n_epoch", "trainer.val_interval, with val_by_epoch: true"},
    {"val_check_interval", "trainer.val_interval"},
    {"log_every_n_steps", "default_hooks.logger.interval"},
    {"enable_checkpointing", "default_hooks.checkpoint; null there turns it off"},
    {"enable_progress_bar", "default_hooks.logger.progress"},
    {"callbacks", "custom_hooks"},
    {"logger", "default_hooks.logger.sinks"},
    {"accelerator", "device"},
    {"default_root_dir", "work_dir"},
    {"seed_everything", "seed"},
    {"every_n_train_steps", "interval"},
    {"every_n_epochs", "interval, with by_epoch: true"},
    {"save_top_k", "max_keep, and save_best for the best one"},
    {"dirpath", "out_dir"},
    // PyTorch's scripts
    {"lr", "optim_wrapper.optimizer.lr"},
    {"epochs", "trainer.max_epochs"},
    {"batch_size", "data.train.batch_size"},
    {"num_workers", "data.train.num_workers"},
    {"lr_scheduler", "param_scheduler"},
    {"prefetch_factor", "prefetch"},
    {"foreach", "remove it: duet steps all tensors of a group at once"},
    {"fused", "remove it: duet takes the fused kernel where there is one"},
    {"capturable", "remove it: in graph mode every step of the optimizer is captured"},
    // duet itself, before the first release
    {"max_updates", "trainer.max_steps"},
    // mmengine's Runner
    {"train_cfg", "trainer"},
    {"max_iters", "trainer.max_steps"},
    {"train_dataloader", "data.train"},
    {"val_dataloader", "data.val"},
    {"test_dataloader", "data.test"},
    {"optimizer", "optim_wrapper.optimizer"},
    {"randomness", "seed"},
    {"visualizer", "default_hooks.logger.sinks"},
    {"vis_backends", "default_hooks.logger.sinks"},
    {"log_processor", "default_hooks.logger, which has its keys"},
    {"find_unused_parameters", "distributed.find_unused_parameters"},
    {"broadcast_buffers", "distributed.broadcast_buffers"},
    {"model_wrapper_cfg", "distributed"},
    {"lr_config", "param_scheduler"},
    {"checkpoint_config", "default_hooks.checkpoint"},
    {"log_config", "default_hooks.logger"},
    {"resume_from", "--resume FOLDER on the command line"},
    // HF's TrainingArguments
    {"learning_rate", "optim_wrapper.optimizer.lr"},
    {"gradient_accumulation_steps", "trainer.accumulate"},
    {"max_grad_norm", "optim_wrapper.clip_grad.max_norm"},
    {"num_train_epochs", "trainer.max_epochs"},
    {"ddp_find_unused_parameters", "distributed.find_unused_parameters"},
    {"ddp_bucket_cap_mb", "distributed.bucket_cap_mb"},
    {"ddp_broadcast_buffers", "distributed.broadcast_buffers"},
    {"ddp_timeout", "distributed.timeout"},
    {"output_dir", "work_dir"},
    {"per_device_train_batch_size", "data.train.batch_size"},
    {"eval_steps", "trainer.val_interval"},
    {"save_steps", "default_hooks.checkpoint.interval"},
    {"save_total_limit", "default_hooks.checkpoint.max_keep"},
    {"logging_steps", "default_hooks.logger.interval"},
    {"warmup_steps", "a schedule of param_scheduler: {type: Linear, end: STEPS}"},
    {"lr_scheduler_type", "param_scheduler"},
    // What duet has no key for
    {"val_cfg", "remove it: data.val and trainer.val_interval say what is validated and when"},
    {"test_cfg", "remove it: data.test says what duet eval tests"},
    {"resume", "remove it and write --resume auto on the command line"},
    {"runner_type", "remove it: duet has one loop"},
    {"env_cfg", "remove it: duet sets up processes and backends itself"},
    {"launcher", "remove it: start several processes with duet launch, torchrun, srun or mpirun"},
    {"strategy",
     "remove it: several processes train data parallel; start them with duet launch, torchrun, srun or mpirun"},
    {"devices", "remove it: start one process per device with duet launch, torchrun, srun or mpirun"},
    {"num_sanity_val_steps", "remove it: --dry-run tries every part of a run beforehand"},
    {"num_nodes", "remove it: start the processes with torchrun, srun or mpirun"},
    {"filename_tmpl", "remove it: a checkpoint is a folder named step-N"},
    {"save_optimizer",
     "remove it: a checkpoint holds the whole state; published_keys and duet export give the weights"},
    {"save_param_scheduler", "remove it: a checkpoint holds the whole state"},
    {"interval_exp_name", "remove it: every line has the run's id"},
    {"default_scope", "remove it: types are known by their plain names"},
    {"custom_imports", "remove it: types of your own are registered in C++"}};

// Likewise, of keys whose name means something else elsewhere: where a map knows the second one.
constexpr std::array<std::string_view, 3> kKeysBeside[] = {
    {"mode", "rule", "less or greater"}, {"total_iters", "end", "which counts from the run's beginning"}};

}  // namespace

std::string foreign_key(const std::string& key, const std::vector<std::string>& known) {
  for (const auto& [name, beside, text] : kKeysBeside) {
    if (name == key && std::ranges::find(known, beside) != known.end())
      return concat_text("duet calls it ", beside, ", ", text);
  }
  for (const auto& [name, text] : kKeys) {
    if (name == key) return (text.starts_with("remove it") ? "" : "duet calls it ") + std::string(text);
  }
  return "";
}

}  // namespace duet
