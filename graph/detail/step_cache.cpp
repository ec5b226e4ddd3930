#include "graph/detail/step_cache.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "graph/guards/parity_guard.h"
#include "graph/detail/signature.h"

#include <algorithm>
#include <limits>

namespace duet {

std::size_t StepCache::KeyHash::operator()(const Key& key) const {
  std::size_t hash = key.size();
  for (const int64_t value : key) hash = hash * 0x9E3779B97F4A7C15ULL + static_cast<std::size_t>(value);
  return hash;
}

StepCache::Entry& StepCache::find(TrainStep& rule, const MicroBatches& micro_batches) {
  key_.clear();
  append_inputs_key(micro_batches, key_);
  rule.append_key(key_);
  if (latest_ != nullptr && key_ == latest_key_) return *latest_;
  std::unique_ptr<Entry>& entry = entries_[key_];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>();
    entry->report.signature = describe(micro_batches);
    order_.push_back(entry.get());
    ++new_in_a_row_;
    warn_of_changing_keys();
    forget_old_sights();
  } else {
    new_in_a_row_ = 0;
  }
  latest_key_ = key_;
  latest_ = entry.get();
  return *entry;
}

void StepCache::warn_of_changing_keys() {
  if (new_in_a_row_ != 32) return;
  log_warning("[GraphTrainer] each of the last 32 steps had a signature of its own, so none was captured: shapes, "
              "Task::graph_key, or a hyper-parameter other than lr change at every step. Pad the batches, or keep these constant");
}

// A key that never comes back must not cost memory for ever.
void StepCache::forget_old_sights() {
  constexpr std::size_t kMaxEntries = 1024;
  if (order_.size() <= kMaxEntries) return;
  Entry* oldest = nullptr;
  for (Entry* entry : order_) {
    const bool older = oldest == nullptr || entry->last_use < oldest->last_use;
    if (entry->state == State::kSeen && entry != order_.back() && older) oldest = entry;
  }
  if (oldest == nullptr) return;
  order_.erase(std::find(order_.begin(), order_.end(), oldest));
  if (latest_ == oldest) latest_ = nullptr;
  std::erase_if(entries_, [oldest](const auto& item) { return item.second.get() == oldest; });
}

StepResult StepCache::run(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  if (method_.device == nullptr) return run_one(rule, micro_batches, points);
  StepResult output;
  method_.device->run([&] { output = run_one(rule, micro_batches, points); });
  return output;
}

StepResult StepCache::run_eager(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  StepResult output;
  const auto run = [&] {
    ++steps_;
    watch_addresses();
    Entry& entry = find(rule, micro_batches);
    entry.last_use = steps_;
    output = run_eager(entry, rule, micro_batches, points);
  };
  method_.device != nullptr ? method_.device->run(run) : run();
  return output;
}

double StepCache::plan(TrainStep& rule, const MicroBatches& micro_batches, const StepObserver& points) {
  watch_addresses();
  Entry& entry = find(rule, micro_batches);
  if (entry.state == State::kCaptured && !entry.step->fits(points)) drop(entry);
  if (entry.state == State::kCaptured) return entry.must_verify || entry.unverified + 1 >= entry.next_verification ? 4 : 3;
  const bool may_capture = entry.state == State::kSeen && options_.fallback != Fallback::kEager;
  return may_capture && entry.sights >= method_.eager_steps ? 2 : 1;
}

StepResult StepCache::run_one(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  ++steps_;
  watch_addresses();
  Entry& entry = find(rule, micro_batches);
  entry.last_use = steps_;
  if (entry.state == State::kCaptured && !entry.step->fits(points)) drop(entry);  // hooks inside the step came or went
  if (entry.state == State::kCaptured && !entry.step->prepare(rule, points)) {
    fall_back(entry, entry.step->failure());
    require<GraphError>(options_.fallback != Fallback::kStrict, "[GraphTrainer] step (" + entry.report.signature + "): " +
                                                                    entry.report.reason + "; or set graph.fallback to auto");
  }
  if (entry.state == State::kCaptured && entry.report.replays == 0) evict(entry);  // device graphs exist only now
  if (entry.state == State::kCaptured) return replay(entry, rule, micro_batches, points);
  const bool may_capture = entry.state == State::kSeen && options_.fallback != Fallback::kEager;
  if (may_capture && entry.sights >= method_.eager_steps) return capture(entry, rule, micro_batches, points);
  return run_eager(entry, rule, micro_batches, points);
}

// Before every step, whatever way it will run.
void StepCache::watch_addresses() {
  if (!ledger_written_) return;
  const std::string moved = ledger_.moved();
  if (!moved.empty()) {
    const std::string reason = "the memory of '" + moved + "' is another one than when the step was captured";
    for (Entry* entry : order_) {
      if (entry->state == State::kCaptured) drop(*entry);
    }
    ledger_written_ = false;
    if (options_.fallback == Fallback::kStrict) {
      throw GraphError("[GraphTrainer] " + reason + "; change weights in place (copy_), or set graph.fallback to auto");
    }
    log_warning("[GraphTrainer] " + reason + "; captured steps are dropped and captured anew. Change weights in place "
                "(copy_) to keep them");
  } else if (ledger_.references_changed()) {
    // Perhaps a module let go of a parameter. A comparison tells before a replay counts.
    for (Entry* entry : order_) entry->must_verify = true;
    ledger_.refresh_references();
  }
}

StepResult StepCache::run_eager(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  ++entry.sights;
  ++entry.report.eager_steps;
  ++eager_steps_;
  StepResult output = rule.run(micro_batches, points);
  if (ledger_written_) ledger_.refresh_references();
  return output;
}

StepResult StepCache::capture(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  entry.step = method_.make_step(micro_batches);
  StepResult output;
  ++entry.report.eager_steps;
  ++eager_steps_;
  if (entry.step->capture(rule, micro_batches, points, options_.fallback == Fallback::kStrict, output)) {
    entry.state = State::kCaptured;
    entry.unverified = 0;
    entry.next_verification = options_.verify_interval > 0 ? 1 : std::numeric_limits<int64_t>::max();
    evict(entry);
    NamedTensors watched = rule.parameters();
    for (auto& item : rule.mutable_state()) watched.push_back(std::move(item));
    ledger_.write(watched);
    ledger_written_ = true;
  } else {
    fall_back(entry, entry.step->failure());
  }
  if (ledger_written_) ledger_.refresh_references();
  return output;
}

StepResult StepCache::replay(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  ++entry.unverified;
  if (entry.must_verify || entry.unverified >= entry.next_verification) return verify(entry, rule, micro_batches, points);
  ++entry.report.replays;
  ++replays_;
  return entry.step->replay(rule, micro_batches, points);
}

StepResult StepCache::verify(Entry& entry, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  // Replays that counted since the last comparison and may have been wrong already.
  const int64_t doubtful = entry.must_verify ? 0 : entry.unverified - 1;
  entry.must_verify = false;
  ParityResult result = run_both_ways(*entry.step, rule, micro_batches, points);
  if (result.difference.empty()) {
    ++entry.report.replays;
    ++replays_;
    entry.next_verification = std::min(std::max<int64_t>(2 * entry.unverified, 1), options_.verify_interval);
    if (options_.verify_interval == 0) entry.next_verification = std::numeric_limits<int64_t>::max();
    entry.unverified = 0;
    ledger_.refresh_references();
    return result.output;
  }
  const std::string reason = "its replay differs from its eager run, first in '" + result.difference +
                             "'. Usually the step depends on a host value that changes (a captured number, a replaced "
                             "tensor): keep it in a tensor, or name it in Task::graph_key. If it does not, an op is replayed "
                             "wrongly: set graph.fallback to eager and report it";
  fall_back(entry, reason);
  ++entry.report.eager_steps;
  ++eager_steps_;
  if (!rule.communicator().is_alone()) {
    throw GraphError(c10::str("[GraphTrainer] step (", entry.report.signature, "): ", reason,
                              ". The other ranks may have got a wrong gradient; resume from a checkpoint with graph.fallback eager"));
  }
  if (doubtful > 0 || options_.fallback == Fallback::kStrict) {
    throw GraphError(c10::str("[GraphTrainer] step (", entry.report.signature, "): ", reason, ". Up to ", doubtful,
                              " steps since the last comparison may have used an old value; resume from a checkpoint "
                              "before them, with graph.fallback eager or graph.verify_interval 1"));
  }
  return result.output;
}

// By value: the reason may lie in the step that goes.
void StepCache::fall_back(Entry& entry, std::string reason) {
  entry.state = State::kEager;
  entry.report.reason = reason;
  entry.step.reset();
  log_warning("[GraphTrainer] step (" + entry.report.signature + ") runs eager: " + reason);
}

void StepCache::drop(Entry& entry) {
  entry.state = State::kSeen;
  entry.step.reset();
  entry.sights = 0;
}

// A key ends with the rule's part.
void StepCache::drop_outdated(const TrainStep& rule) {
  Key present;
  rule.append_key(present);
  for (auto& [key, entry] : entries_) {
    const bool fits = key.size() >= present.size() && std::equal(present.rbegin(), present.rend(), key.rbegin());
    if (!fits && entry->state == State::kCaptured) drop(*entry);
  }
}

void StepCache::evict(const Entry& newest) {
  const auto used = [this] {
    int64_t bytes = 0;
    for (const Entry* entry : order_) bytes += entry->step ? entry->step->bytes() : 0;
    return bytes;
  };
  while (used() > options_.cache_bytes) {
    Entry* oldest = nullptr;
    for (Entry* entry : order_) {
      const bool older = oldest == nullptr || entry->last_use < oldest->last_use;
      if (entry != &newest && entry->state == State::kCaptured && older) oldest = entry;
    }
    if (oldest == nullptr) return;  // the step in use stays, whatever it takes
    drop(*oldest);
    if (!warned_of_budget_) {
      log_warning(c10::str("[GraphTrainer] captured steps take more than graph.cache_bytes = ", options_.cache_bytes,
                           "; the least recently used is dropped and captured anew when it comes back"));
    }
    warned_of_budget_ = true;
  }
}

std::vector<SignatureReport> StepCache::report() const {
  std::vector<SignatureReport> reports;
  for (const Entry* entry : order_) {
    SignatureReport report = entry->report;
    report.state = entry->state == State::kCaptured ? "captured" : entry->state == State::kEager ? "eager" : "seen";
    report.bytes = entry->step ? entry->step->bytes() : 0;
    reports.push_back(std::move(report));
  }
  return reports;
}

std::string StepCache::program_text(const NamedTensors& names) const {
  return latest_ != nullptr && latest_->step ? latest_->step->text(names) : std::string();
}

}  // namespace duet
