#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <system_error>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/machine_load.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "cli/runs/run_records.h"
#include "cli/validation_record.h"
#include "cli/work_dir.h"
#include "distributed/communicator.h"
#include "graph/graph_trainer.h"
#include "hooks/logger_hook.h"
#include "hooks/stop_signal_hook.h"

namespace duet {

namespace {

constexpr int kInterrupted = 75;  // EX_TEMPFAIL: the state is saved, call again

std::string checkpoint_root(const RunConfig& config) { return CheckpointStore::root_of(config.work_dir); }

[[noreturn]] void refuse_work_dir(const RunConfig& config) {
  throw ConfigError("[duet] cannot write '" + config.work_dir +
                    "/config.yaml', expected a writable folder; change work_dir");
}

void make_work_dir(const RunConfig& config) {
  std::error_code failed;
  std::filesystem::create_directories(config.work_dir, failed);
  if (failed) refuse_work_dir(config);
}

// Which start of a launcher a work_dir is of, as a line of its config.yaml.
std::string launch_line(const RunConfig& config) {
  return "# Launched as " + config.launch.from + " " + config.launch.run_id;
}

// Whether what is in the work_dir was begun by the launcher that has now started the run anew, not by one before.
bool is_of_this_launch(const RunConfig& config) {
  const std::string& id = config.launch.run_id;
  // torchrun counts no restart when machines come or go; names that the user has not given are used again.
  const bool is_own_name = config.launch.from == "torchrun" && !id.starts_with("none.");
  if (id.empty() || (config.launch.restarts == 0 && !is_own_name)) return false;
  std::ifstream file(config.work_dir + "/config.yaml");
  for (std::string line; std::getline(file, line) && line.starts_with("#");) {
    if (line == launch_line(config)) return true;
  }
  return false;
}

// Saved before the first step, so that even a run that fails says what it was, and not before the run is known to fit
// what is there.
void save_resolved_config(const RunConfig& config) {
  std::ofstream file(config.work_dir + "/config.yaml");
  file << "# The config of this run as it was resolved; comments say where each value came from.\n"
       << (config.launch.run_id.empty() ? "" : launch_line(config) + "\n") << config.root.dump();
  file.close();
  if (!file) refuse_work_dir(config);
}

// Known now that every part has read its keys.
void give_config_to_logger(const RunConfig& config, BaseTrainer& trainer) {
  auto* const logger = dynamic_cast<LoggerHook*>(trainer.hooks().find("logger"));
  if (logger != nullptr) logger->set_config(config_json(config.root));
}

void move(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code failed;
  std::filesystem::rename(from, to, failed);
  if (!failed) return;
  throw CheckpointError("[duet] cannot move the checkpoints of an earlier run from '" + from.string() + "' to '" +
                        to.string() + "': " + failed.message() + "; choose another work_dir");
}

// Where checkpoints go that are no longer of this run: <root>.1, <root>.2, ...
std::string free_place(const std::string& root) {
  std::error_code ignored;
  int64_t number = 1;
  while (std::filesystem::exists(c10::str(root, ".", number), ignored)) ++number;
  return c10::str(root, ".", number);
}

// Among this run's checkpoints, those of an earlier and longer one would be taken for the newest.
// Returns where they are then.
std::string set_aside(const std::string& root) {
  const std::string aside = free_place(root);
  move(root, aside);
  log_warning("the checkpoints of an earlier run are now in '" + aside + "'; pass --resume " + aside +
              " to go on from them");
  return aside;
}

// After a run that failed without a checkpoint of its own: a slip in a config must not cost an earlier run its place.
// Not under a launcher, which starts the run anew and resumes from what it finds there.
void put_back(const RunConfig& config, const std::string& aside, const std::string& root) {
  if (aside.empty() || config.launch.agent_store || !CheckpointStore(root).list().empty()) return;
  std::error_code failed;
  std::filesystem::remove_all(root, failed);
  if (!failed) std::filesystem::rename(aside, root, failed);
  if (!failed) log_info("this run has saved no checkpoint: those of the earlier run are back in '" + root + "'");
}

// A run that goes on from an earlier checkpoint leaves those that came after it, and the best one if it is among them.
void set_later_ones_aside(const std::string& root, int64_t step) {
  const CheckpointStore store(root);
  const std::string aside = free_place(root);
  const std::optional<std::string> best = store.find_best();
  int64_t moved = 0;
  for (const std::string& path : store.list()) {
    const std::filesystem::path folder(path);
    if (std::stoll(folder.filename().string().substr(5)) <= step) continue;  // step-<step>
    std::filesystem::create_directories(aside);
    if (best && folder.filename() == std::filesystem::path(*best).filename()) move(root + "/best", aside + "/best");
    move(folder, std::filesystem::path(aside) / folder.filename());
    ++moved;
  }
  if (moved == 0) return;
  log_warning(c10::str(moved, " checkpoints of steps after ", step, " are now in '", aside, "'; pass --resume ", aside,
                       " to go on from them"));
}

// What --resume means here: a run that its launcher has started anew goes on from what it has saved.
std::string resume_wish(const RunConfig& config, const std::string& resume) {
  const std::string wish = resume.empty() ? "none" : resume;
  if (resume == "none" || wish == "auto" || !is_of_this_launch(config)) return wish;
  if (wish != "none" && !CheckpointStore(checkpoint_root(config)).find_latest()) return wish;
  log_info(c10::str("run '", config.launch.run_id, "' of ", config.launch.from, " is started anew (restart ",
                    config.launch.restarts, "): --resume auto"));
  return "auto";
}

// The checkpoint to go on from; empty: none.
std::string checkpoint_to_resume(const RunConfig& config, const std::string& from) {
  if (from == "none") return "";
  if (from != "auto") return CheckpointStore::find(from);
  if (const std::optional<std::string> latest = CheckpointStore(checkpoint_root(config)).find_latest()) return *latest;
  log_info("no checkpoint in '" + checkpoint_root(config) + "' yet: starting from the beginning");
  std::error_code ignored;
  const std::string aside = checkpoint_root(config) + ".1";
  if (std::filesystem::exists(aside, ignored)) {
    log_warning("there are checkpoints of earlier runs in '" + aside + "'; pass --resume " + aside +
                " to go on from them");
  }
  return "";
}

// What a resumed run says, and does with the checkpoints that it does not go on from.
void settle_resumed(const RunConfig& config, const std::string& from, const std::string& path,
                    const BaseTrainer& trainer) {
  log_info(c10::str("resumed from '", path, "' after step ", trainer.progress().step));
  if (from != "auto" && !CheckpointStore(checkpoint_root(config)).list().empty()) {
    const auto parent = std::filesystem::weakly_canonical(path).parent_path();
    const auto root = std::filesystem::weakly_canonical(checkpoint_root(config));
    if (parent == root) {
      set_later_ones_aside(checkpoint_root(config), trainer.progress().step);
    } else {
      set_aside(checkpoint_root(config));
    }
  }
  if (config.load_from) {
    log_info("load_from is not used, as the checkpoint holds the weights: '" + config.load_from->source.path + "'");
  }
}

// Rank 0 chooses, all load. Whether a checkpoint was there to go on from.
bool resume(const RunConfig& config, const std::string& wanted, BaseTrainer& trainer) {
  check_same_option(config.communicator(), "--resume", wanted);
  std::string from;
  const std::string path = from_main(config.communicator(), [&] {
    from = resume_wish(config, wanted);
    return checkpoint_to_resume(config, from);
  });
  if (path.empty()) return false;
  trainer.load(path);
  run_on_main(config.communicator(), [&] { settle_resumed(config, from, path, trainer); });
  return true;
}

// Returns where the checkpoints of an earlier run are now, on rank 0; empty if there were none.
std::string start_anew(const RunConfig& config, BaseTrainer& trainer) {
  load_start_weights(config, trainer);
  // Not before the weights are there, which may be those of the earlier run.
  const std::string root = checkpoint_root(config);
  std::string aside;
  run_on_main(config.communicator(), [&] {
    if (!CheckpointStore(root).list().empty()) aside = set_aside(root);
  });
  return aside;
}

// Saves an interrupted run, unless the checkpoint hook has done so.
void save_interrupted_run(const RunConfig& config, BaseTrainer& trainer) {
  const std::string root = checkpoint_root(config);
  const std::string folder = CheckpointStore::folder_name(trainer.progress().step);
  const std::string saved = from_main(config.communicator(), [&] {
    for (const std::string& path : CheckpointStore(root).list()) {
      // If not saved now then before this run was resumed, with the same content.
      if (std::filesystem::path(path).filename() == folder) return path;
    }
    return std::string();
  });
  if (saved.empty()) trainer.save(root);
}

void print_summary(const RunConfig& config, const Run& run) {
  std::cout << to_string(run.trainer->outcome()) << " after " << run.trainer->progress().step << " steps in "
            << config.mode << " mode";
  if (run.graph != nullptr) {
    std::cout << " (" << run.graph->replays() << " replayed, " << run.graph->eager_steps() << " eager)";
    for (const SignatureReport& signature : run.graph->report()) {
      if (signature.state == "eager")
        std::cout << "\n  eager " << signature.kind << ": " << signature.signature << ": " << signature.reason;
    }
  }
  if (!run.trainer->stop_reason().empty()) std::cout << ": " << run.trainer->stop_reason();
  std::cout << "\nresults in " << config.work_dir << std::endl;
}

// The work_dir of this run until the process is gone. Taken before the set-up, which may take long, if there can be
// another run at all.
void lock_early(const RunConfig& config, std::optional<RunLock>& lock) {
  std::error_code ignored;
  if (std::filesystem::is_directory(config.work_dir, ignored)) lock.emplace(config.work_dir);
}

void lock_now(const RunConfig& config, std::optional<RunLock>& lock) {
  make_work_dir(config);
  if (!lock) lock.emplace(config.work_dir);
}

int train(const Arguments& arguments, RunConfig& config) {
  Communicator& ranks = config.communicator();
  run_on_main(ranks, [&] { check_writable(arguments.json); });
  if (!arguments.dry_run.empty() || config.dry_run > 0) return dry_run(config, arguments.json);
  // From here on, so that one during a long set-up counts too, and until the process is gone.
  // Never destroyed, since LibTorch takes a while to go.
  static const auto* const signals = new StopSignals;
  (void)signals;
  std::optional<RunLock> lock;
  run_on_main(ranks, [&] { lock_early(config, lock); });
  Run run = build_training(config);
  Measurements measured;
  ValidationRecord validations;
  run_on_all_ranks(ranks, [&] {
    add_hooks(config, run);
    run.trainer->add_hook(std::make_unique<StopSignalHook>());
    if (arguments.json.empty()) return;
    run.trainer->add_hook(std::make_unique<MeasureHook>(measured));
    const auto record = [&validations](TrainContext& at) { validations.add(at.evaluation.metrics, at.progress.step); };
    run.trainer->on(HookPoint::kAfterVal, record, "validation_record", kLowest);
  });
  run_on_main(ranks, [&] { lock_now(config, lock); });
  std::string aside;
  if (!resume(config, arguments.resume, *run.trainer)) aside = start_anew(config, *run.trainer);
  run_on_main(ranks, [&] {
    save_resolved_config(config);
    write_run_environment(config.work_dir);
  });
  give_config_to_logger(config, *run.trainer);

  if (run.trainer->finished()) {
    log_info(c10::str("this run has finished its ", run.trainer->progress().step,
                      " steps; raise trainer.max_steps or trainer.max_epochs to go on"));
  }
  if (config.is_main()) warn_of_machine_load(config.train->loader.num_workers);
  show_warnings_of_all_ranks();
  if (const std::exception_ptr error = caught([&] { run.trainer->train(*run.train, run.val.get()); })) {
    if (config.is_main()) put_back(config, aside, checkpoint_root(config));
    std::rethrow_exception(error);
  }

  if (config.is_main()) {
    if (!arguments.json.empty()) {
      nlohmann::ordered_json json = report_of(run, config.mode, measured);
      json["metrics"] = validations.json();
      write_json(arguments.json, json);
    }
    if (run.graph != nullptr) write_graph_coverage(config.work_dir, *run.graph);
    print_summary(config, run);
  }
  if (run.trainer->outcome() != RunOutcome::kInterrupted) return 0;
  save_interrupted_run(config, *run.trainer);
  if (config.is_main()) std::cout << "state saved; go on with --resume auto" << std::endl;
  // torchrun takes any other code for a failure and would start the run anew.
  return config.launch.agent_store ? 0 : kInterrupted;
}

}  // namespace

int train_command(const Arguments& arguments) {
  return run_on_ranks(
      arguments.launch, [&] { return load_run_config(arguments); },
      [&](RunConfig& config) { return train(arguments, config); });
}

}  // namespace duet
