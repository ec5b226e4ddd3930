#include "graph/detail/signature_cache.h"
#include <algorithm>
#include <array>
#include <functional>
#include <sstream>
#include <utility>
#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/StringUtil.h>
#include "base/detail/op_rules.h"
#include "base/log.h"
#include "graph/record/thread_settings.h"

namespace duet {

namespace {

using State = SignatureEntry::State;

// What a captured step depends on in its micro-batches: names, shapes, strides, dtypes, devices, shared memory.
void append_inputs_key(const MicroBatches& micro_batches, const WrittenMemory& written, std::vector<int64_t>& key) {
  key.push_back(static_cast<int64_t>(micro_batches.batches.size()));
  for (const Batch& batch : micro_batches.batches) {
    key.push_back(static_cast<int64_t>(batch.items().size()));
    if (batch.structure() != nullptr) key.push_back(batch.structure()->key());
    for (const auto& [name, tensor] : batch.items()) {
      key.push_back(static_cast<int64_t>(std::hash<std::string>{}(name)));
      key.push_back(static_cast<int64_t>(tensor.scalar_type()));
      key.push_back(static_cast<int64_t>(tensor.device().type()) << 8 | (tensor.device().index() + 1));
      key.push_back(is_plain(tensor) ? tensor.dim() : -1);
      if (!is_plain(tensor)) continue;  // such a step is not captured, whatever its shape
      key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
      key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
      key.push_back(StaticInputs::misalignment(tensor));
      written.append_shared(tensor, key);
    }
  }
}

// The same for people: "image float32[64, 1, 28, 28], target int64[64]", micro-batches joined by " + ".
std::string describe(const MicroBatches& micro_batches) {
  std::ostringstream out;
  for (std::size_t b = 0; b < micro_batches.batches.size(); ++b) {
    if (b > 0) out << " + ";
    bool first = true;
    for (const auto& [name, tensor] : micro_batches.batches[b].items()) {
      out << (first ? "" : ", ") << name << " " << c10::toString(tensor.scalar_type());
      if (is_plain(tensor)) out << tensor.sizes();
      first = false;
    }
  }
  return out.str();
}

// The least recently used entry for which `may_go` holds; null if there is none.
template <class MayGo>
SignatureEntry* oldest_of(const std::vector<SignatureEntry*>& entries, MayGo may_go) {
  SignatureEntry* oldest = nullptr;
  for (SignatureEntry* entry : entries) {
    if (may_go(*entry) && (oldest == nullptr || entry->last_use < oldest->last_use)) oldest = entry;
  }
  return oldest;
}

}  // namespace

bool SignatureEntry::record_again(const std::optional<StepProgram::Place>& changed, bool too_often,
                                  int64_t eager_steps_before) {
  constexpr int64_t kFree = 4;  // recordings before any has paid
  constexpr std::size_t kMaxParked = 4, kMaxChanging = 64;
  check.verified();
  differing_in_a_row = 0;
  const bool learned = changed && std::ranges::find(changing, *changed) == changing.end();
  if (learned && changing.size() < kMaxChanging) {
    changing.push_back(*changed);
    drop();
  } else if (too_often) {
    if (recordings >= kFree) return false;
    drop();
  } else if (untried > 0) {
    --untried;
    differing_in_a_row = 1;  // the next one that differs is not it
    parked.push_back(std::exchange(step, std::move(parked.front())));
    parked.erase(parked.begin());
    return true;
  } else {
    if (recordings >= kFree && !has_paid()) return false;
    parked.push_back(std::move(step));
    if (parked.size() > kMaxParked) parked.erase(parked.begin());
    state = State::kSeen;
  }
  eager_steps = eager_steps_before;
  return true;
}

void SignatureEntry::retry_later() {
  constexpr int64_t kFirst = 256;
  retry_at = report.eager_steps + (kFirst << std::min<int64_t>(retries++, 20));
  recordings = 0;
  differing_before_retry = report.differing;
}

int64_t SignatureEntry::bytes() const {
  int64_t bytes = step ? step->bytes() : 0;
  for (const auto& other : parked) bytes += other->bytes();
  return bytes;
}

void SignatureEntry::drop() {
  check.verified();
  state = State::kSeen;
  step.reset();
  parked.clear();
  untried = 0;
  retry_at = std::numeric_limits<int64_t>::max();
  eager_steps = 0;
  report.signature = inputs;
}

void SignatureEntry::give_up(std::string reason, bool has_variants) {
  state = State::kEager;
  step.reset();
  parked.clear();
  report.reason = std::move(reason);
  report.signature = inputs + (has_variants ? ", reads other values" : "");
}

void SignatureEntry::name_reads() {
  report.signature = inputs + (step->reads() != nullptr ? ", reads " + step->reads()->values() : "");
}

SignatureVariants& SignatureCache::find(const StepCode& step, const MicroBatches& micro_batches) {
  key_.clear();
  append_settings(key_, on_gpu_);
  append_inputs_key(micro_batches, written_, key_);
  step.append_key(key_);
  if (found_ != nullptr && key_ == latest_key_) return *found_;
  SignatureVariants& variants = entries_[key_];
  if (variants.empty()) {
    SignatureEntry& entry = *variants.emplace_back(std::make_unique<SignatureEntry>(options_));
    entry.report.signature = entry.inputs = describe(micro_batches);
    entry.report.kind = to_string(step.kind());
    entry.plan_version = step.plan_version();
    entry.key = key_;
    forget_before(entry.plan_version);
    order_.push_back(&entry);
    ++new_in_a_row_;
    warn_of_changing_keys();
    forget_oldest();
  } else {
    new_in_a_row_ = 0;
  }
  latest_key_ = key_;
  found_ = &variants;
  return variants;
}

bool SignatureCache::add_written(const WrittenMemory::Ranges& ranges, const MicroBatches& micro_batches) {
  Key before, after;
  append_inputs_key(micro_batches, written_, before);
  written_.add(ranges);
  append_inputs_key(micro_batches, written_, after);
  return before != after;
}

SignatureEntry& SignatureCache::add_variant(SignatureVariants& variants) {
  const SignatureEntry& other = *variants.front();
  auto variant = std::make_unique<SignatureEntry>(options_);
  variant->report.signature = variant->inputs = other.inputs;
  variant->report.kind = other.report.kind;
  variant->plan_version = other.plan_version;
  variant->key = other.key;
  order_.push_back(variant.get());
  return *variants.emplace_back(std::move(variant));
}

void SignatureCache::merge_variants(SignatureVariants& variants, SignatureEntry& heir) {
  SignatureReport& sum = heir.report;
  std::erase_if(variants, [&](const auto& variant) {
    if (variant.get() == &heir || variant->returns > 0) return false;
    const SignatureReport& report = variant->report;
    sum.eager_steps += report.eager_steps;
    sum.replays += report.replays;
    sum.checked += report.checked;
    sum.unchecked += report.unchecked;
    sum.unchecked_in_a_row = std::max(sum.unchecked_in_a_row, report.unchecked_in_a_row);
    sum.check_seconds += report.check_seconds;
    sum.differing += report.differing;
    sum.nondeterministic += report.nondeterministic;
    std::erase(order_, variant.get());
    if (latest_ == variant.get()) latest_ = nullptr;
    return true;
  });
}

void SignatureCache::warn_of_changing_keys() const {
  if (new_in_a_row_ != 32) return;
  log_warning(
      "[GraphTrainer] each of the last 32 steps had a signature of its own, so none was captured: shapes, "
      "Task::graph_key, or a hyper-parameter other than lr change at every step. Pad the batches, or keep these "
      "constant");
}

// A key that never comes back must not cost memory for ever.
void SignatureCache::forget_oldest() {
  constexpr std::size_t kMaxEntries = 1024;
  if (order_.size() <= kMaxEntries) return;
  const SignatureEntry* newest = order_.back();
  SignatureEntry* oldest = oldest_of(order_, [&](const SignatureEntry& entry) {
    return entry.state == State::kSeen && &entry != newest && !has_variants(entry);
  });
  if (oldest == nullptr) return;
  std::erase(order_, oldest);
  if (latest_ == oldest) latest_ = nullptr;
  entries_.erase(Key(oldest->key));
  found_ = nullptr;
}

// Their memory; what they were is still reported.
void SignatureCache::forget_before(int64_t plan_version) {
  for (SignatureEntry* entry : order_) {
    if (entry->plan_version < plan_version && entry->state == State::kCaptured) entry->drop();
  }
}

int64_t SignatureCache::bytes() const {
  int64_t bytes = 0;
  for (const SignatureEntry* entry : order_) bytes += entry->bytes();
  return bytes;
}

void SignatureCache::evict(const SignatureEntry& newest) {
  while (bytes() > options_.cache_bytes) {
    SignatureEntry* oldest =
        oldest_of(order_, [&newest](const SignatureEntry& entry) { return entry.bytes() > 0 && &entry != &newest; });
    if (oldest == nullptr) return;
    oldest->drop();
    if (!warned_of_budget_) {
      log_warning(c10::str("[GraphTrainer] captured steps take more than graph.cache_bytes = ", options_.cache_bytes,
                           "; the least recently used is dropped and captured again when it comes back"));
    }
    warned_of_budget_ = true;
  }
}

void SignatureCache::drop_all() {
  for (SignatureEntry* entry : order_) {
    if (entry->state == State::kCaptured) entry->drop();
  }
}

// A key ends with TrainStep's part.
bool SignatureCache::is_of(const SignatureEntry& entry, const StepCode& step) {
  Key present;
  step.append_key(present);
  return entry.key.size() >= present.size() && std::equal(present.rbegin(), present.rend(), entry.key.rbegin());
}

bool SignatureCache::is_present(const SignatureEntry& entry, const StepCode& step) const {
  Key settings;
  append_settings(settings, on_gpu_);
  return std::equal(settings.begin(), settings.end(), entry.key.begin()) && is_of(entry, step);
}

void SignatureCache::drop_outdated(const StepCode& step) {
  for (SignatureEntry* entry : order_) {
    if (entry->state == State::kCaptured && !is_of(*entry, step)) entry->drop();
  }
}

void SignatureCache::must_check() {
  for (SignatureEntry* entry : order_) {
    options_.check == Check::kOff ? entry->verify.must_verify() : entry->check.must_check();
  }
}

std::vector<SignatureReport> SignatureCache::report() const {
  std::vector<SignatureReport> reports;
  for (const SignatureEntry* entry : order_) {
    SignatureReport report = entry->report;
    report.state = entry->state == State::kCaptured ? "captured" : entry->state == State::kEager ? "eager" : "seen";
    report.bytes = entry->bytes();
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace duet
