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
#include "hooks/detail/checkpoint_place.h"
#include "hooks/detail/published_weights.h"
#include "hooks/detail/shared.h"
#include "metrics/metric.h"

namespace duet {

CheckpointHook::CheckpointHook(CheckpointHookOptions options) : options_(std::move(options)) {
  check_options(options_);
}

void CheckpointHook::before_train(TrainContext& context) {
  store_.reset();
  pending_.reset();
  failed_ = false;
  refused_step_ = -1;
  saved_step_ = context.progress.step;
  if (context.work_dir.empty()) {
    const bool saves =
        options_.interval > 0 || options_.interval_time > 0 || !options_.save_best.empty() || options_.save_last;
    if (!options_.need_work_dir || !saves) return;
    throw ConfigError(
        "[CheckpointHook] found no work_dir, expected a folder to save to; set work_dir, or remove this hook");
  }
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
  for (const Best& best : bests_) {
    const std::string path = root + "/" + best.folder;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored) || best_by(best.metric) != &best) continue;
    for (const std::string& file : files_of(best.metric)) {
      if (store_->find_best(file) != path) store_->set_best(best.folder, file);
    }
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
  if (!store_ || options_.save_best.empty() || context.evaluation.metrics.empty()) return;
  settle_save(context);  // it may be the best one so far, if it does not fail
  forget_lost(context);
  const Bests previous = bests_;
  const Bests improved = take_improved(context);  // first, so that the checkpoint that they name holds them
  if (improved.empty()) return;
  const bool is_saved =
      options_.best_weights_only ? save_weights(context) : try_save(context, files_of_best(context.progress.step));
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
  for (const Best& best : bests_) {
    if (best.folder != name_of_best(step) || best_by(best.metric) != &best) continue;
    for (const std::string& file : files_of(best.metric)) files.push_back(file);
  }
  return files;
}

bool CheckpointHook::save_weights(const TrainContext& context) try {
  run_on_main(*context.communicator, [&] {
    const std::string& average = context.evaluation.averaged_by;
    const std::string name = name_of_best(context.progress.step);
    const std::string which = average.empty() ? "model" : "hooks." + average + ".weights";
    write_weights(store_->root() + "/" + name, host_copy(context.trainer.state_dict().part(which)));
    for (const std::string& file : files_of_best(context.progress.step)) store_->set_best(name, file);
  });
  return true;
} catch (const CheckpointError& error) {
  const int64_t step = context.progress.step;
  if (context.is_main)
    log_error(c10::str("[CheckpointHook] no weights of step ", step, ", it goes on: ", error.what()));
  return false;
}

void CheckpointHook::announce(const Bests& improved, const TrainContext& context) const {
  if (!context.is_main) return;
  for (const Best& best : improved) {
    const Best* const first = best_by(best.metric);
    const bool is_first = first == nullptr || first->folder == best.folder;
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
    std::vector<std::string> there;
    if (caught([&] { there = store_->list(); })) return;  // a save will say why
    for (const Best& best : bests_) {
      const std::string path = store_->root() + "/" + best.folder;
      std::error_code ignored;
      const bool is_file = CheckpointStore::is_weights(best.folder) && std::filesystem::exists(path, ignored);
      if (!is_file && std::ranges::count(there, path) == 0) lost += best.folder + "\n";
    }
  });
  lost = context.communicator->broadcast(lost);
  const auto is_lost = [&lost](const Best& best) { return lost.find(best.folder + "\n") != std::string::npos; };
  for (const Best& best : bests_) {
    if (!is_lost(best) || !context.is_main) continue;
    log_warning(c10::str("[CheckpointHook] ", best.folder, ", the best checkpoint by ", best.metric, " ", best.score,
                         ", is not there any more: the best one is sought anew"));
  }
  std::erase_if(bests_, is_lost);
}

CheckpointHook::Bests CheckpointHook::take_improved(const TrainContext& context) {
  Bests improved, now;
  for (const std::string& metric : metrics_of(context)) {
    const double score = context.evaluation.metrics.at(metric);
    if (!std::isfinite(score) && context.is_main) {
      log_warning(
          c10::str("[CheckpointHook] found ", metric, " ", score, " after step ", context.progress.step,
                   ", expected a finite number: this step is not the best; look at the data of the validation"));
    }
    Bests ranked;
    std::ranges::copy_if(bests_, std::back_inserter(ranked), [&](const Best& best) { return best.metric == metric; });
    const Best result{metric, score, name_of_best(context.progress.step)};
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
      save(context, {}, /*in_background=*/false);
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

std::vector<std::string> CheckpointHook::metrics_of(const TrainContext& context) {
  const MetricValues& metrics = context.evaluation.metrics;
  std::vector<std::string> names;
  for (const std::string& wanted : options_.save_best) {
    if (wanted != "auto" && metrics.count(wanted) == 0) {
      throw ConfigError(not_found("CheckpointHook", "metric", wanted, metrics) +
                        "; correct save_best, or add the metric");
    }
    const std::string name = wanted == "auto" ? first_metric(context) : wanted;
    const bool is_new = wanted == "auto" && std::exchange(auto_metric_, name) != name;
    if (is_new && context.is_main) log_info("[CheckpointHook] save_best: auto goes by " + name);
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

const CheckpointHook::Best* CheckpointHook::best_by(const std::string& metric) const {
  const auto found = std::ranges::find(bests_, metric, &Best::metric);
  return found == bests_.end() ? nullptr : &*found;
}

// Of steps that the newest checkpoint names no more: a run that goes on from one finds its best.
void CheckpointHook::remove_weights(const Bests& named, const TrainContext& context) const {
  if (!options_.best_weights_only || !context.is_main) return;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(store_->root(), ignored)) {
    const std::string name = entry.path().filename().string();
    const auto names = [&name](const Bests& all) { return std::ranges::count(all, name, &Best::folder) > 0; };
    if (CheckpointStore::is_weights(name) && !names(named) && !names(bests_)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

// Behind those that are as good; a step stands there once.
bool CheckpointHook::enter(Bests& ranked, const Best& result) const {
  if (!std::isfinite(result.score)) return false;
  const bool less = less_is_better(result.metric);
  const auto is_worse = [&](const Best& best) { return less ? result.score < best.score : result.score > best.score; };
  const auto place = std::ranges::find_if(ranked, is_worse) - ranked.begin();
  const auto is_known = [&](const Best& best) { return best.folder == result.folder; };
  if (place >= options_.save_top_k || std::any_of(ranked.begin(), ranked.begin() + place, is_known)) return false;
  std::erase_if(ranked, is_known);  // worse ones
  ranked.insert(ranked.begin() + place, result);
  if (std::ssize(ranked) > options_.save_top_k) ranked.pop_back();
  return true;
}

bool CheckpointHook::save(TrainContext& context, const std::vector<std::string>& best, bool in_background) {
  if (refused_step_ == context.progress.step) return false;  // and said so
  last_save_ = std::chrono::steady_clock::now();
  settle_save(context);
  std::string path;
  std::vector<std::string> keep;
  for (const Best& one : bests_) keep.push_back(one.folder);
  try {
    path = save_checkpoint(*store_, context, {keep, best, in_background});
  } catch (const SaveRefused& refusal) {
    refused_step_ = context.progress.step;
    if (!context.is_main) return false;
    log_warning(c10::str("[CheckpointHook] no checkpoint of step ", context.progress.step,
                         ", the ones before it stay as they are: ", refusal.what()));
    return false;
  }
  saved_step_ = context.progress.step;
  failed_ = false;
  if (in_background) pending_ = Pending{path, bests_, {}};
  if (!in_background) remove_weights(bests_, context);
  return true;
}

bool CheckpointHook::try_save(TrainContext& context, const std::vector<std::string>& best) {
  try {
    return save(context, best, options_.async);
  } catch (const CheckpointError& error) {
    failed_ = true;
    if (!context.is_main) return false;
    log_error(c10::str("[CheckpointHook] no checkpoint of step ", context.progress.step,
                       ", training goes on and the next save tries again: ", error.what()));
    return false;
  }
}

void CheckpointHook::settle_save(TrainContext& context) {
  if (!pending_) return;
  const Pending pending = *std::exchange(pending_, std::nullopt);
  try {
    finish_save(*store_, pending.path, context);
    announce(pending.improved, context);
    remove_weights(pending.bests_before, context);
  } catch (const CheckpointError&) {  // which is in the log already
    bests_ = pending.bests_before;
    failed_ = true;
  }
}

namespace {

// The first one as where there was but one.
std::string numbered(const char* key, std::size_t index) { return index == 0 ? key : concat_text(key, ".", index); }

}  // namespace

// What the checkpoints hold, as it is on the disk.
void CheckpointHook::publish(const TrainContext& context) const {
  std::map<std::string, std::string> checkpoints;
  if (const auto latest = store_->find_latest()) checkpoints["last"] = *latest;
  for (const Best& best : bests_) {
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
