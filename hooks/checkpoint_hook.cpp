#include "hooks/checkpoint_hook.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/weights_file.h"
#include "core/detail/run_state.h"
#include "distributed/communicator.h"
#include "hooks/detail/checkpoint_files.h"
#include "hooks/detail/shared.h"
#include "metrics/metric.h"

namespace duet {

const OptionFields& CheckpointHookOptions::fields() {
  using O = CheckpointHookOptions;
  return described<O>("CheckpointHook", [](const auto& add) {
    add("interval", &O::interval, "steps between saves; 0: only at the end").in(at_least(0));
    add.key("by_epoch", "true/false", "interval counts epochs", "false");
    add("interval_time", &O::interval_time, "time between saves, counted from the last one; 0: they go by steps alone")
        .in(at_least(0))
        .read_by_hand("time: seconds, 1h30m, or days:hours:minutes:seconds");
    add("save_begin", &O::save_begin, "step before which nothing is saved, and from which the interval counts")
        .in(at_least(0));
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
        .in(at_least(0));
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

CheckpointHook::CheckpointHook(CheckpointHookOptions options) : options_(std::move(options)) {
  check_options(options_);
}

void CheckpointHook::before_train(TrainContext& context) {
  store_.reset();
  pending_.reset();
  failed_ = false;
  refused_step_ = -1;
  saved_step_ = context.progress.step;
  if (context.work_dir.empty() && !options_.need_work_dir) return;
  require<ConfigError>(
      !context.work_dir.empty(),
      "[CheckpointHook] found no work_dir, expected a folder to save to; set work_dir, or remove this hook");
  if (!options_.save_best.empty()) context.warn_without_validation("[CheckpointHook] save_best");
  std::string root;
  run_on_main(*context.communicator, [&] { root = make_checkpoint_folder(context, options_.out_dir); });
  root = context.communicator->broadcast(root);
  last_save_ = std::chrono::steady_clock::now();
  store_.emplace(root, CheckpointOptions{.max_keep = options_.max_keep, .verify_interval = options_.verify_interval});
  if (!context.is_main) return;
  store_->remove_leftovers();  // a run that has nothing left to do saves nothing
  restore_pointers(root);
}

// A process may have died between the best checkpoint and the file that names it. What was loaded knows.
void CheckpointHook::restore_pointers(const std::string& root) const {
  for (const Best& best : very_best()) {
    if (std::error_code ignored; !std::filesystem::exists(root + "/" + best.folder, ignored)) continue;
    for (const std::string& file : files_of(best.metric)) store_->set_best(best.folder, file);
  }
}

void CheckpointHook::after_train_iter(TrainContext& context) {
  const bool is_asked = std::exchange(context.control.save_requested, false);
  if (!store_) return;
  const int64_t since_begin = context.progress.step - options_.save_begin;
  const bool is_due = options_.interval > 0 && since_begin >= 0 && since_begin % options_.interval == 0;
  if ((is_due || is_asked) && !context.control.has_gone_wrong()) try_save(context);
  propose_by_time(context);
}

void CheckpointHook::propose_by_time(TrainContext& context) {
  if (options_.interval_time <= 0 || !context.is_main || context.progress.step < options_.save_begin) return;
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - last_save_;
  if (since.count() >= options_.interval_time) context.control.propose_save();
}

void CheckpointHook::after_val(TrainContext& context) {
  saved_step_ = -1;  // what a validation changes is not in the checkpoint of its step
  if (!store_ || options_.save_best.empty() || context.evaluation.metrics.empty()) return;
  settle_save(context);  // it may be the best one so far, if it does not fail
  forget_lost(context);
  const Bests previous = bests_;
  const Bests improved = take_improved(context);  // first, so that the checkpoint that they name holds them
  if (improved.empty()) return;
  const bool is_saved = options_.best_weights_only ? attempt_save(context, [&] { save_weights(context); })
                                                   : try_save(context, files_of_best(context.progress.step));
  if (!is_saved) {
    bests_ = previous;
    return;
  }
  if (!pending_) return announce(improved, context);
  pending_->bests_before = previous;
  pending_->improved = improved;
}

std::string CheckpointHook::name_of_best(int64_t step) const {
  return CheckpointStore::folder_name(step) + (options_.best_weights_only ? CheckpointStore::kWeightsEnding : "");
}

std::vector<std::string> CheckpointHook::files_of_best(int64_t step) const {
  std::vector<std::string> files;
  for (const Best& best : very_best()) {
    if (best.folder != name_of_best(step)) continue;
    for (const std::string& file : files_of(best.metric)) files.push_back(file);
  }
  return files;
}

void CheckpointHook::save_weights(const TrainContext& context) {
  run_on_main(*context.communicator, [&] {
    const std::string& average = context.evaluation.averaged_by;
    const std::string name = name_of_best(context.progress.step), path = store_->root() + "/" + name;
    const std::string which = average.empty() ? "model" : "hooks." + average + ".weights";
    write_weights(path, copy_of(context.trainer.state_dict().part(which), at::kCPU));
    for (const std::string& file : files_of_best(context.progress.step)) store_->set_best(name, file);
  });
}

void CheckpointHook::announce(const Bests& improved, const TrainContext& context) const {
  if (!context.is_main) return;
  for (const Best& best : improved) {
    const auto first = std::ranges::find(bests_, best.metric, &Best::metric);
    const bool is_first = first == bests_.end() || first->folder == best.folder;
    log_info(c10::str(is_first ? "best checkpoint so far: " : "among the best checkpoints: ", best.folder, " with ",
                      best.metric, " ", best.score, " (", less_is_better(best.metric) ? "less" : "greater",
                      " is better)"));
  }
}

// Rank 0 looks, and all forget alike.
void CheckpointHook::forget_lost(const TrainContext& context) {
  if (bests_.empty()) return;
  std::string lost;
  run_on_main(*context.communicator, [&] {
    std::error_code ignored;
    if (!std::filesystem::is_directory(store_->root(), ignored)) return;  // a save will say why
    for (const Best& best : bests_) {
      if (std::filesystem::exists(store_->root() + "/" + best.folder, ignored)) continue;
      log_warning(c10::str("[CheckpointHook] ", best.folder, ", the best checkpoint by ", best.metric, " ", best.score,
                           ", is not there any more: the best one is sought anew"));
      lost += best.folder + "\n";
    }
  });
  lost = context.communicator->broadcast(lost);
  std::erase_if(bests_, [&lost](const Best& best) { return lost.find(best.folder + "\n") != std::string::npos; });
}

CheckpointHook::Bests CheckpointHook::take_improved(const TrainContext& context) {
  Bests improved, now;
  for (const std::string& metric : metrics_of(context)) {
    Bests ranked;
    std::ranges::copy_if(bests_, std::back_inserter(ranked), [&](const Best& best) { return best.metric == metric; });
    const Best result{metric, context.evaluation.metrics.at(metric), name_of_best(context.progress.step)};
    if (!std::isfinite(result.score) && context.is_main) {
      log_warning(c10::str("[CheckpointHook] found ", metric, " ", result.score, " after step ", context.progress.step,
                           ", expected a finite number: this step is not the best"));
    }
    if (enter(ranked, result)) improved.push_back(result);
    now.insert(now.end(), ranked.begin(), ranked.end());
  }
  bests_ = std::move(now);
  return improved;
}

// What was just loaded is saved already. In a run that goes back the steps after it come again, and the files for the
// best ones may have gone with what was set aside.
void CheckpointHook::after_load_checkpoint(TrainContext& context) {
  saved_step_ = context.progress.step;
  refused_step_ = -1;
  if (pending_) pending_->bests_before = bests_;
  if (store_ && context.is_main) restore_pointers(store_->root());
}

void CheckpointHook::after_train(TrainContext& context) {
  if (!store_) return;
  const RunOutcome outcome = context.control.outcome;
  if (context.control.error.empty()) {
    settle_save(context);
    // After a rollback, perhaps: its step was saved before, with the data that has been left out since.
    const bool is_asked = std::exchange(context.control.save_requested, false);
    const bool wanted = failed_ || is_asked || options_.save_last || outcome == RunOutcome::kInterrupted;
    const bool has_newer = failed_ || is_asked || saved_step_ != context.progress.step;
    if (wanted && has_newer && outcome != RunOutcome::kDiverged) {
      const std::string path = save(context, {}, /*in_background=*/false);
      if (!path.empty()) complete(path, bests_, context);
    }
  } else if (pending_) {  // without the other ranks, which may be gone
    if (!caught([this] { store_->finish_save(); })) announce(pending_->improved, context);
    pending_.reset();
  }
  const bool is_through =
      context.control.error.empty() && outcome != RunOutcome::kInterrupted && outcome != RunOutcome::kDiverged;
  if (is_through && !options_.published_keys.empty()) run_on_main(*context.communicator, [&] { publish(context); });
  store_.reset();
}

// Where nobody says what the first metric is, the first by name, the loss only if there is no other.
std::string CheckpointHook::first_metric(const TrainContext& context) const {
  const MetricValues& metrics = context.evaluation.metrics;
  if (!bests_.empty() && metrics.count(bests_.front().metric) != 0) return bests_.front().metric;
  if (metrics.count(context.evaluation.first_metric) != 0) return context.evaluation.first_metric;
  const bool loss_first = metrics.begin()->first == "loss" && metrics.size() > 1;
  return loss_first ? std::next(metrics.begin())->first : metrics.begin()->first;
}

std::vector<std::string> CheckpointHook::metrics_of(const TrainContext& context) const {
  const MetricValues& metrics = context.evaluation.metrics;
  std::vector<std::string> names;
  for (const std::string& wanted : options_.save_best) {
    if (wanted != "auto" && metrics.count(wanted) == 0) {
      throw ConfigError(not_found("CheckpointHook", "metric", wanted, metrics) +
                        "; correct save_best, or add the metric");
    }
    const std::string name = wanted == "auto" ? first_metric(context) : wanted;
    if (std::ranges::count(names, name) == 0) names.push_back(name);
  }
  return names;
}

// That of the first metric is the one that `best` means.
std::vector<std::string> CheckpointHook::files_of(const std::string& metric) const {
  if (options_.save_best.size() <= 1) return {CheckpointStore::kBestFile};
  std::vector<std::string> files = {CheckpointStore::best_file(metric)};
  if (!bests_.empty() && bests_.front().metric == metric) files.emplace_back(CheckpointStore::kBestFile);
  return files;
}

bool CheckpointHook::less_is_better(const std::string& metric) const {
  return duet::less_is_better("CheckpointHook", metric, options_.rule);
}

// They stand together by metric.
CheckpointHook::Bests CheckpointHook::very_best() const {
  Bests first = bests_;
  const auto [begin, end] = std::ranges::unique(first, {}, &Best::metric);
  first.erase(begin, end);
  return first;
}

// Behind those that are as good; a step stands there once.
bool CheckpointHook::enter(Bests& ranked, const Best& result) const {
  if (!std::isfinite(result.score)) return false;
  const bool less = less_is_better(result.metric);
  const auto is_better = [less](double a, double b) { return less ? a < b : a > b; };
  const auto known = std::ranges::find(ranked, result.folder, &Best::folder);
  if (known != ranked.end() && !is_better(result.score, known->score)) return false;
  if (known != ranked.end()) ranked.erase(known);
  const auto place = std::ranges::upper_bound(ranked, result.score, is_better, &Best::score) - ranked.begin();
  ranked.insert(ranked.begin() + place, result);
  if (std::ssize(ranked) > options_.save_top_k) ranked.pop_back();
  return place < options_.save_top_k;
}

std::string CheckpointHook::save(TrainContext& context, const std::vector<std::string>& best, bool in_background) {
  if (refused_step_ == context.progress.step) return "";  // and said so
  last_save_ = std::chrono::steady_clock::now();
  std::string path;
  std::vector<std::string> keep(bests_.size());
  std::ranges::transform(bests_, keep.begin(), &Best::folder);
  try {
    path = save_checkpoint(*store_, context, {keep, best, in_background});
  } catch (const SaveRefused& refusal) {
    refused_step_ = context.progress.step;
    if (context.is_main) {
      log_warning(c10::str("[CheckpointHook] no checkpoint of step ", context.progress.step,
                           ", the ones before it stay as they are: ", refusal.what()));
    }
    return "";
  }
  saved_step_ = context.progress.step;
  failed_ = false;
  if (in_background) pending_ = Pending{path, bests_, {}};
  return path;
}

bool CheckpointHook::try_save(TrainContext& context, const std::vector<std::string>& best) {
  settle_save(context);
  std::string path;
  if (!attempt_save(context, [&] { path = save(context, best, options_.async); })) {
    failed_ = true;
    return false;
  }
  if (!path.empty() && !pending_) complete(path, bests_, context);
  return !path.empty();
}

void CheckpointHook::settle_save(TrainContext& context) {
  if (!pending_) return;
  const Pending pending = *std::exchange(pending_, std::nullopt);
  try {
    run_on_main(*context.communicator, [&] { store_->finish_save(); });  // all ranks throw its error
  } catch (const CheckpointError&) {                                     // which is in the log already
    bests_ = pending.bests_before;
    failed_ = true;
    return;
  }
  announce(pending.improved, context);
  complete(pending.path, pending.bests_before, context);
}

void CheckpointHook::complete(const std::string& path, const Bests& named, TrainContext& context) const {
  if (options_.best_weights_only && context.is_main) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(store_->root(), ignored)) {
      const std::string name = entry.path().filename().string();
      const auto has = [&name](const Bests& all) { return std::ranges::count(all, name, &Best::folder) > 0; };
      if (CheckpointStore::is_weights(name) && !has(named) && !has(bests_)) std::filesystem::remove(entry, ignored);
    }
  }
  tell_saved(path, context);
}

namespace {

// The first one as where there was but one.
std::string numbered(const char* key, std::size_t index) { return index == 0 ? key : concat_text(key, ".", index); }

}  // namespace

// What the checkpoints hold, as it is on the disk.
void CheckpointHook::publish(const TrainContext& context) const {
  std::map<std::string, std::string> checkpoints;
  if (const auto latest = store_->find_latest()) checkpoints["last"] = *latest;
  for (const Best& best : very_best()) {
    const std::string file = files_of(best.metric).front();
    if (CheckpointStore::is_weights(best.folder)) continue;  // published as it is
    if (const auto found = store_->find_best(file)) checkpoints[file] = *found;
  }
  publish_weights(options_.published_keys, checkpoints, context);
}

StateDict CheckpointHook::state_dict() const {
  StateDict state;
  for (std::size_t i = 0; i < bests_.size(); ++i) {
    state.set(numbered("best_metric", i), StateValue(bests_[i].metric));
    state.set(numbered("best_score", i), StateValue(bests_[i].score));
    state.set(numbered("best_folder", i), StateValue(bests_[i].folder));
  }
  return state;
}

void CheckpointHook::load_state_dict(const StateDict& state) {
  Bests bests;
  for (std::size_t i = 0; state.has(numbered("best_metric", i)); ++i) {
    bests.push_back({state.text(numbered("best_metric", i)), state.number(numbered("best_score", i)),
                     state.text(numbered("best_folder", i))});
  }
  bests_ = std::move(bests);
}

}  // namespace duet
