#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <system_error>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "cli/run_identity.h"
#include "cli/runs/run_folder.h"
#include "cli/work_dir.h"
#include "distributed/communicator.h"
#include "graph/graph_trainer.h"
#include "hooks/logger_hook.h"
#include "hooks/stop_signal_hook.h"
#include "io/file_io.h"

namespace duet {

namespace {

std::string checkpoint_root(const RunConfig& config) { return CheckpointStore::root_of(config.work_dir); }

// Whether what is in the work_dir was begun by the launcher that has now started the run anew, not by one before: its
// newest checkpoint says so.
bool is_of_this_launch(const RunConfig& config) {
  const std::string& id = config.launch.run_id;
  // torchrun counts no restart when machines come or go; names that the user has not given are used again.
  const bool is_own_name = config.launch.from == "torchrun" && !id.starts_with("none.");
  if (id.empty() || (config.launch.restarts == 0 && !is_own_name)) return false;
  for (const std::string& path : CheckpointStore(checkpoint_root(config)).list()) {
    std::string launch;
    const auto unread = caught([&] { launch = CheckpointStore::read_manifest(path).run.launch; });
    if (!unread) return launch == launch_name(config.launch);  // of a damaged one the load will tell
  }
  return false;
}

// Saved before the first step, so that even a run that fails says what it was, and not before the run is known to fit
// what is there. A full disk leaves the one before, which is good enough for a run that goes on: its checkpoints hold
// the config as well.
void save_resolved_config(const RunConfig& config, bool resumed) {
  const std::string text =
      "# The config of this run as it was resolved; comments say where each value came from.\n" + config.root.dump();
  try {
    file_io::replace_file(config.work_dir + "/config.yaml", text);
  } catch (const file_io::IoError& error) {
    if (!resumed) {
      throw ConfigError("[duet] cannot write '" + config.work_dir + "/config.yaml' (" + error.what() +
                        "), expected a writable folder; change work_dir");
    }
    log_warning(c10::str("[duet] '", config.work_dir, "/config.yaml' stays as it was: ", error.what()));
  }
}

void tell_aside(const std::string& which, const std::string& aside) {
  log_warning("the checkpoints of " + which + " are in '" + aside + "'; pass --resume " + aside +
              " to go on from them");
}

// Among this run's checkpoints, those of an earlier and longer one would be taken for the newest. Returns where they
// are.
std::string archive_checkpoints(const std::string& root) {
  const std::string aside = CheckpointStore::place_aside(root);
  try {
    file_io::rename(root, aside);
    file_io::sync_folder(std::filesystem::path(aside).parent_path().string());
  } catch (const file_io::IoError& error) {
    throw CheckpointError(c10::str("[duet] the checkpoints of an earlier run stay where they are: ", error.what(),
                                   "; choose another work_dir"));
  }
  tell_aside("an earlier run", aside);
  return aside;
}

// What an earlier run in the work_dir has left: where its checkpoints are now (empty: it has none), and its
// config.yaml.
struct EarlierRun {
  std::string checkpoints, config;
};

// After a run that failed before it has saved anything: a slip in a config must not cost an earlier run its place. Not
// under a launcher, which starts the run anew and resumes from what it finds there, nor in an out_dir of its own.
void put_back(const RunConfig& config, const EarlierRun& earlier) {
  const std::string root = checkpoint_root(config);
  if (config.launch.agent_store || !earlier.checkpoints.starts_with(root + ".")) return;
  const CheckpointStore store(root);
  if (!store.list().empty() || store.find_best()) return;
  std::error_code failed;
  std::filesystem::remove_all(root, failed);
  if (!failed) std::filesystem::rename(earlier.checkpoints, root, failed);
  if (failed) return;
  if (!earlier.config.empty())
    static_cast<void>(caught([&] { file_io::replace_file(config.work_dir + "/config.yaml", earlier.config); }));
  log_info("this run has saved no checkpoint: those of the earlier run are back in '" + root + "'");
}

// What --resume means here: a run that its launcher has started anew goes on from what it has saved.
std::string resolve_resume_flag(const RunConfig& config, const std::string& resume) {
  const std::string wish = resume.empty() ? "none" : resume;
  if (resume == "none" || wish == "auto" || !is_of_this_launch(config)) return wish;
  log_info(c10::str("run '", config.launch.run_id, "' of ", config.launch.from, " is started anew (restart ",
                    config.launch.restarts, "): --resume auto"));
  return "auto";
}

// The checkpoint to go on from, or a folder of them; empty: none.
std::string checkpoint_to_resume(const RunConfig& config, const std::string& from) {
  if (from == "none") return "";
  if (from != "auto") return CheckpointStore::follow(from);
  const std::string root = checkpoint_root(config);
  if (!CheckpointStore(root).list().empty()) return root;
  log_info("no checkpoint in '" + root + "' yet: starting from the beginning");
  std::error_code ignored;
  if (std::filesystem::exists(root + ".1", ignored)) tell_aside("an earlier run", root + ".1");
  return "";
}

// What --resume comes to, known before a model is made for the classes of today.
struct ResumePlan {
  std::string from;                  // none, auto, or a place; known to rank 0
  std::string path;                  // the checkpoint to go on from, or a folder of them; empty: none
  std::vector<std::string> classes;  // that it was trained with; none: unknown
};

// What the newest checkpoint that `path` leads to says of its run; nothing if it cannot be read: why, the load will
// say.
RunIdentity newest_identity(const std::string& path) {
  RunIdentity newest;
  static_cast<void>(caught([&] {
    std::vector<std::string> paths = CheckpointStore(path).list();
    if (paths.empty()) paths = CheckpointStore(CheckpointStore::root_of(path)).list();
    newest = CheckpointStore::read_manifest(paths.empty() ? path : paths.front()).run;
  }));
  return newest;
}

ResumePlan plan_resume(const RunConfig& config, const Arguments& arguments) {
  Communicator& ranks = config.communicator();
  check_same_option(ranks, "--resume", arguments.resume);
  check_same_option(ranks, "--hyper-parameters", arguments.hyper_parameters);
  ResumePlan plan;
  RunIdentity trained;
  plan.path = from_main(ranks, [&] {
    plan.from = resolve_resume_flag(config, arguments.resume);
    const std::string path = checkpoint_to_resume(config, plan.from);
    if (!path.empty()) trained = newest_identity(path);
    return path;
  });
  plan.classes = data_everywhere(ranks, trained).classes;
  return plan;
}

// What a resumed run says, and does with the checkpoints that it does not go on from.
void settle_resumed(const RunConfig& config, const std::string& from, const std::string& path,
                    const BaseTrainer& trainer) {
  log_info(c10::str("resumed from '", path, "' after step ", trainer.progress().step));
  const std::string root = checkpoint_root(config);
  if (from != "auto" && !CheckpointStore(root).list().empty()) {
    const bool is_own =
        std::filesystem::weakly_canonical(path).parent_path() == std::filesystem::weakly_canonical(root);
    if (!is_own) archive_checkpoints(root);
    // Those that came after it, and the best one if it is among them.
    const int64_t step = trainer.progress().step;
    const std::string aside = is_own ? CheckpointStore(root).set_aside_after(step) : "";
    if (!aside.empty()) tell_aside(c10::str("steps after ", step), aside);
  }
  if (config.load_from) {
    log_info("load_from is not used, as the checkpoint holds the weights: '" + config.load_from->source.path + "'");
  }
}

// Says in what this run is not the one that saved the checkpoint; the config then has what is used.
void compare_with_saved(RunConfig& config, const std::string& path, HyperParametersFrom numbers, const Run& run) {
  const BaseTrainer& trainer = *run.trainer;
  const RunIdentity saved = CheckpointStore::read_manifest(path).run;
  const RunIdentity& now = trainer.identity();
  require_encoding(config, run, saved, path);
  const OptimizerNumbers held =
      numbers == HyperParametersFrom::kCheckpoint ? numbers_in(trainer.state_dict()) : OptimizerNumbers();
  const auto differences = resume_differences(saved.config, now.config, held);
  if (!differences.empty()) log_warning(differences_text(differences, path));
  if (!saved.data.empty() && !now.data.empty() && saved.data != now.data) {
    log_warning(c10::str("the training data is not what '", path, "' was trained on: ", now.data, " here, ", saved.data,
                         " there"));
  }
  if (saved.world_size > 0 && saved.world_size != now.world_size) {
    log_info(c10::str("'", path, "' was saved by ", saved.world_size, " processes, this run has ", now.world_size));
  }
  adopt_saved_values(differences, path, config.root);
}

// Whether a checkpoint was there to go on from.
bool resume(RunConfig& config, const Arguments& arguments, const ResumePlan& plan, Run& run) {
  BaseTrainer& trainer = *run.trainer;
  if (plan.path.empty()) return false;
  const HyperParametersFrom numbers =
      arguments.hyper_parameters == "config" ? HyperParametersFrom::kThisRun : HyperParametersFrom::kCheckpoint;
  const std::string path = trainer.load(plan.path, numbers);
  run_on_main(config.communicator(), [&] {
    compare_with_saved(config, path, numbers, run);
    settle_resumed(config, plan.from, path, trainer);
  });
  return true;
}

void fill_run_identity(const RunConfig& config, Run& run) {
  RunIdentity& identity = run.trainer->identity();
  identity.config = flat_config(config.root);
  identity.launch = launch_name(config.launch);
  identity.classes = class_names_of(run);
  if (run.train_data) identity.encoding = run.train_data->encoding();
  if (config.is_main()) identity.data = data_fingerprint(config, run);
}

EarlierRun start_anew(const RunConfig& config, BaseTrainer& trainer) {
  load_start_weights(config, trainer);
  // Not before the weights are there, which may be those of the earlier run.
  EarlierRun earlier;
  run_on_main(config.communicator(), [&] {
    const std::string root = checkpoint_root(config);
    if (CheckpointStore(root).list().empty()) return;
    constexpr uint64_t kMost = uint64_t{16} << 20;
    static_cast<void>(caught([&] { earlier.config = file_io::read_text(config.work_dir + "/config.yaml", kMost); }));
    earlier.checkpoints = archive_checkpoints(root);
  });
  return earlier;
}

// Saves an interrupted run, unless the checkpoint hook has done so. False: a hook refuses its state.
bool save_interrupted_run(const RunConfig& config, BaseTrainer& trainer) {
  const std::string root = checkpoint_root(config);
  const std::string folder = CheckpointStore::folder_name(trainer.progress().step);
  const std::string saved = from_main(config.communicator(), [&] {
    for (const std::string& path : CheckpointStore(root).list()) {
      // If not saved now then before this run was resumed, with the same content.
      if (std::filesystem::path(path).filename() == folder) return path;
    }
    return std::string();
  });
  if (!saved.empty()) return true;
  try {
    trainer.save(root);
    return true;
  } catch (const SaveRefused& refusal) {
    if (config.is_main()) log_warning(refusal.what());
    return false;
  }
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

// Of a run that has ended without an error.
int exit_code_of(const RunConfig& config, BaseTrainer& trainer) {
  if (trainer.outcome() == RunOutcome::kDiverged) return NonFiniteError("").exit_code();
  if (trainer.outcome() != RunOutcome::kInterrupted) return 0;
  const bool saved = save_interrupted_run(config, trainer);
  if (config.is_main()) {
    std::cout << (saved ? "state saved" : "state not saved, earlier checkpoints stay") << "; go on with --resume auto"
              << std::endl;
  }
  // torchrun takes any other code for a failure and would start the run anew.
  return config.launch.agent_store ? 0 : kInterrupted;
}

void add_train_hooks(const Arguments& arguments, const RunConfig& config, Run& run, TrainRecord& record) {
  add_hooks(config, run);
  run.trainer->add_hook(std::make_unique<StopSignalHook>());
  if (arguments.json.empty()) return;
  run.trainer->add_hook(std::make_unique<MeasureHook>(record.measured));
  const auto add = [&record](TrainContext& at) {
    record.validations.emplace_back(at.progress.step, at.evaluation.metrics);
  };
  run.trainer->on(HookPoint::kAfterVal, add, "validation_record", kLowest);
}

// Returns the exit code; `earlier` is then what start_anew() gave.
int train_run(const Arguments& arguments, const ResumePlan& plan, RunConfig& config, Run& run, EarlierRun& earlier) {
  Communicator& ranks = config.communicator();
  fill_run_identity(config, run);
  const bool resumed = resume(config, arguments, plan, run);
  if (!resumed) earlier = start_anew(config, *run.trainer);
  run.trainer->identity().config = flat_config(config.root);  // with what the checkpoint has decided
  run_on_main(ranks, [&] {
    save_resolved_config(config, resumed);
    write_run_environment(config.work_dir);
  });
  // Known now that every part has read its keys.
  auto* const logger = dynamic_cast<LoggerHook*>(run.trainer->hooks().find("logger"));
  if (logger != nullptr) logger->set_config(config_json(config.root));

  if (run.trainer->finished()) {
    log_info(c10::str("this run has finished its ", run.trainer->progress().step,
                      " steps; raise trainer.max_steps or trainer.max_epochs to go on"));
  }
  show_warnings_of_all_ranks();
  {
    const auto covered = c10::make_scope_exit([&] {  // of a run that ends with an error, too
      if (config.is_main() && run.graph != nullptr) write_graph_coverage(config.work_dir, *run.graph);
    });
    train_on(*run.train, config, run);
  }
  if (config.is_main()) print_summary(config, run);
  return exit_code_of(config, *run.trainer);
}

// Of the processes that this one goes on from, as the log has them.
void add_earlier_validations(const std::string& work_dir, TrainRecord& record) {
  std::map<int64_t, MetricValues> earlier;
  for (const Curve& curve : read_progress(work_dir).log.curves) {
    for (const CurvePoint& point : curve.points) {
      const auto step = static_cast<int64_t>(point.step);
      const bool is_own = !record.validations.empty() && step >= record.validations.front().first;
      if (curve.kind == "val" && !is_own) earlier[step][curve.name] = point.value;
    }
  }
  record.validations.insert(record.validations.begin(), earlier.begin(), earlier.end());
}

int train(const Arguments& arguments, RunConfig& config) {
  Communicator& ranks = config.communicator();
  run_on_main(ranks, [&] { check_writable(arguments.json); });
  if (!arguments.dry_run.empty() || config.dry_run > 0) return dry_run(config, arguments.json);
  // From here on, so that one during a long set-up counts too, and until the process is gone.
  // Never destroyed, since LibTorch takes a while to go.
  static const auto* const signals = new StopSignals;
  (void)signals;
  // Taken before the set-up, which may take long, if there can be another run at all.
  std::optional<RunLock> lock;
  run_on_main(ranks, [&] {
    std::error_code ignored;
    if (std::filesystem::is_directory(config.work_dir, ignored)) lock.emplace(config.work_dir);
  });
  const ResumePlan plan = plan_resume(config, arguments);
  Run run = build_training(config, plan.classes);
  TrainRecord record{.mode = config.mode};
  int exit_code = 0;
  EarlierRun earlier;
  const std::exception_ptr error = caught([&] {
    run_on_all_ranks(ranks, [&] { add_train_hooks(arguments, config, run, record); });
    run_on_main(ranks, [&] {
      make_folder(config.work_dir);
      if (!lock) lock.emplace(config.work_dir);
      run.trainer->on(HookPoint::kBeforeSaveCheckpoint, [&lock](TrainContext&) { lock->renew(); });
    });
    exit_code = train_run(arguments, plan, config, run, earlier);
  });
  if (error || run.trainer->outcome() == RunOutcome::kDiverged) put_back(config, earlier);
  if (error) exit_code = failure_of(error).exit_code;
  const std::exception_ptr unwritten = caught([&] {
    if (!config.is_main() || arguments.json.empty()) return;
    add_earlier_validations(config.work_dir, record);
    write_train_record(arguments.json, run, record, {error, exit_code});
  });
  if (error && unwritten) log_warning(failure_of(unwritten).text);
  if (error) std::rethrow_exception(error);
  if (unwritten) std::rethrow_exception(unwritten);
  return exit_code;
}

}  // namespace

int train_command(const Arguments& arguments) {
  return run_on_ranks(
      arguments.launch, [&] { return load_run_config(arguments); },
      [&](RunConfig& config) { return train(arguments, config); });
}

}  // namespace duet
