#include "hooks/checkpoint_hook.h"
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include "base/error.h"
#include "base/log.h"
#include "core/detail/run_state.h"
#include "distributed/communicator.h"
#include "hooks/detail/shared.h"
#include "metrics/metric.h"

namespace duet {

namespace {

// Found out before training and not at the first save, hours later.
void make_folder(const std::string& root, const std::string& work_dir) {
  std::error_code failed;
  std::filesystem::create_directories(root, failed);
  if (!failed && access(root.c_str(), W_OK) != 0) failed = std::error_code(errno, std::generic_category());
  if (failed) {
    throw ConfigError("[CheckpointHook] found '" + root + "' that cannot be written (" + failed.message() +
                      "), expected a writable folder; change work_dir (now '" + work_dir + "')");
  }
}

}  // namespace

const OptionFields& CheckpointHookOptions::fields() {
  using O = CheckpointHookOptions;
  return described<O>("CheckpointHook", [](const auto& add) {
    add("interval", &O::interval, "steps between saves; 0: only at the end")
        .in(at_least(0))
        .expects("steps >= 0; set 0 to save only at the end")
        .read_by_hand("integer, at least 0", "500");
    add.key("by_epoch", "true/false", "interval counts epochs", "false");
    add("save_begin", &O::save_begin, "step before which nothing is saved, and from which the interval counts")
        .in(at_least(0))
        .expects("a step >= 0")
        .read_by_hand("integer, at least 0", "0");
    add("max_keep", &O::max_keep, "checkpoints that are kept, the best one apart; -1: all")
        .in(at_least(-1))
        .expects("at least 1, or -1 to keep all")
        .also_keyed("max_keep_ckpts");
    add("save_last", &O::save_last, "saves when training ends or is stopped");
    add("rule", &O::rule, "what is better; by default the metric's name says it")
        .called("greater, less")
        .one_of({"", "greater", "less"});
    add("save_best", &O::save_best, "metric to keep the best of").called("auto, or the name of a metric");
    add.rule([](const O& o) {
      require<ConfigError>(o.max_keep != 0, "[CheckpointHook] max_keep is 0, expected at least 1, or -1 to keep all");
      // Found out now and not at the first validation.
      if (!o.save_best.empty() && o.save_best != "auto") less_is_better("CheckpointHook", o.save_best, o.rule);
    });
  });
}

CheckpointHook::CheckpointHook(CheckpointHookOptions options) : options_(std::move(options)) {
  check_options(options_);
}

void CheckpointHook::before_train(TrainContext& context) {
  store_.reset();
  failed_ = false;
  refused_step_ = -1;
  saved_step_ = context.progress.step;
  if (context.work_dir.empty()) {
    const bool saves = options_.interval > 0 || !options_.save_best.empty() || options_.save_last;
    if (!options_.need_work_dir || !saves) return;
    throw ConfigError(
        "[CheckpointHook] found no work_dir, expected a folder to save to; set work_dir, or remove this hook");
  }
  const std::string root = CheckpointStore::root_of(context.work_dir);
  run_on_main(*context.communicator, [&] { make_folder(root, context.work_dir); });
  store_.emplace(root, CheckpointOptions{.max_keep = options_.max_keep});
  if (context.is_main) restore_pointer(root);
}

// A process may have died between the best checkpoint and the file that names it. What was loaded knows.
void CheckpointHook::restore_pointer(const std::string& root) const {
  if (!best_) return;
  const std::string path = root + "/" + best_->folder;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored) && store_->find_best() != path) store_->set_best(best_->folder);
}

void CheckpointHook::after_train_iter(TrainContext& context) {
  const bool is_asked = std::exchange(context.control.save_requested, false);
  if (!store_) return;
  const int64_t since_begin = context.progress.step - options_.save_begin;
  const bool is_due = options_.interval > 0 && since_begin >= 0 && since_begin % options_.interval == 0;
  if (is_due || is_asked) try_save(context);
}

void CheckpointHook::after_val(TrainContext& context) {
  if (!store_ || options_.save_best.empty() || context.evaluation.metrics.empty()) return;
  const std::string metric = metric_of(context);
  const double score = context.evaluation.metrics.at(metric);
  if (!improves(metric, score)) return;

  // The record goes first, so that the checkpoint it names holds it.
  const std::optional<Best> previous = best_;
  best_ = Best{metric, score, CheckpointStore::folder_name(context.progress.step)};
  if (!try_save(context, CheckpointRank::kBest)) {
    best_ = previous;
    return;
  }
  if (!context.is_main) return;
  log_info(c10::str("best checkpoint so far: ", best_->folder, " with ", metric, " ", score, " (",
                    less_is_better(metric) ? "less" : "greater", " is better)"));
}

// What was just loaded is saved already.
void CheckpointHook::after_load_checkpoint(TrainContext& context) { saved_step_ = context.progress.step; }

void CheckpointHook::after_train(TrainContext& context) {
  if (!store_) return;
  const bool wanted = options_.save_last || context.control.outcome == RunOutcome::kInterrupted;
  const bool due = failed_ || (wanted && saved_step_ != context.progress.step);
  if (context.control.error.empty() && due) save(context);
  store_.reset();
}

// Where nobody says what the first metric is, the first by name, the loss only if there is no other.
std::string CheckpointHook::first_metric(const TrainContext& context) const {
  const MetricValues& metrics = context.evaluation.metrics;
  if (best_ && metrics.count(best_->metric) != 0) return best_->metric;
  if (metrics.count(context.evaluation.first_metric) != 0) return context.evaluation.first_metric;
  const bool loss_first = metrics.begin()->first == "loss" && metrics.size() > 1;
  return loss_first ? std::next(metrics.begin())->first : metrics.begin()->first;
}

std::string CheckpointHook::metric_of(const TrainContext& context) {
  const MetricValues& metrics = context.evaluation.metrics;
  if (options_.save_best == "auto") {
    const std::string metric = first_metric(context);
    const bool is_new = std::exchange(auto_metric_, metric) != metric;
    if (is_new && context.is_main) log_info("[CheckpointHook] save_best: auto goes by " + metric);
    return metric;
  }
  if (metrics.count(options_.save_best) != 0) return options_.save_best;
  throw ConfigError(not_found("CheckpointHook", "metric", options_.save_best, metrics) +
                    "; correct save_best, or add the metric");
}

bool CheckpointHook::less_is_better(const std::string& metric) const {
  return duet::less_is_better("CheckpointHook", metric, options_.rule);
}

bool CheckpointHook::improves(const std::string& metric, double score) const {
  if (!std::isfinite(score)) return false;
  if (!best_ || best_->metric != metric) return true;
  return less_is_better(metric) ? score < best_->score : score > best_->score;
}

bool CheckpointHook::save(const TrainContext& context, CheckpointRank rank) {
  if (refused_step_ == context.progress.step) return false;  // and said so
  std::vector<std::string> keep;
  if (best_) keep.push_back(best_->folder);
  try {
    save_checkpoint(*store_, context, keep, rank);
  } catch (const SaveRefused& refusal) {
    refused_step_ = context.progress.step;
    if (!context.is_main) return false;
    log_warning(c10::str("[CheckpointHook] no checkpoint of step ", context.progress.step,
                         ", the ones before it stay as they are: ", refusal.what()));
    return false;
  }
  saved_step_ = context.progress.step;
  failed_ = false;
  return true;
}

bool CheckpointHook::try_save(const TrainContext& context, CheckpointRank rank) {
  try {
    return save(context, rank);
  } catch (const CheckpointError& error) {
    failed_ = true;
    if (!context.is_main) return false;
    log_error(c10::str("[CheckpointHook] no checkpoint of step ", context.progress.step,
                       ", training goes on and the next save tries again: ", error.what()));
    return false;
  }
}

StateDict CheckpointHook::state_dict() const {
  StateDict state;
  if (!best_) return state;
  state.set("best_metric", StateValue(best_->metric));
  state.set("best_score", StateValue(best_->score));
  state.set("best_folder", StateValue(best_->folder));
  return state;
}

void CheckpointHook::load_state_dict(const StateDict& state) {
  std::optional<Best> best;
  if (state.has("best_metric")) {
    best = Best{state.text("best_metric"), state.number("best_score"), state.text("best_folder")};
  }
  best_ = std::move(best);
}

}  // namespace duet
