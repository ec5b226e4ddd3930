#include "graph/detail/signature_cache.h"
#include <algorithm>
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

enum class Sizes { kIncluded, kLeftOut };

// What a captured step depends on in its micro-batches: names, shapes, strides, dtypes, devices, shared memory.
void append_inputs_key(const MicroBatches& micro_batches, const WrittenMemory& written, std::vector<int64_t>& key,
                       Sizes sizes = Sizes::kIncluded) {
  key.push_back(static_cast<int64_t>(micro_batches.batches.size()));
  for (const Batch& batch : micro_batches.batches) {
    key.push_back(static_cast<int64_t>(batch.items().size()));
    if (batch.structure() != nullptr) key.push_back(batch.structure()->key());
    for (const auto& [name, tensor] : batch.items()) {
      key.push_back(static_cast<int64_t>(std::hash<std::string>{}(name)));
      key.push_back(static_cast<int64_t>(tensor.scalar_type()));
      key.push_back(static_cast<int64_t>(tensor.device().type()) << 8 | (tensor.device().index() + 1));
      key.push_back(is_plain(tensor) ? tensor.dim() : -1);
      if (!is_plain(tensor) || sizes == Sizes::kLeftOut) continue;  // the former is not captured, whatever its shape
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

// Of those for which `may_go` holds; null if there is none.
template <class MayGo>
SignatureEntry* least_recently_used(const std::vector<SignatureEntry*>& entries, MayGo may_go) {
  SignatureEntry* oldest = nullptr;
  for (SignatureEntry* entry : entries) {
    if ((oldest == nullptr || entry->last_use < oldest->last_use) && may_go(*entry)) oldest = entry;
  }
  return oldest;
}

// A key ends with the step's part.
bool is_of(const SignatureEntry& entry, const StepCode& step) {
  std::vector<int64_t> present;
  step.append_key(present);
  const std::vector<int64_t>& key = entry.signature.key;
  return key.size() >= present.size() && std::equal(present.rbegin(), present.rend(), key.rbegin());
}

constexpr int64_t kFreeRecordings = 4;   // before any has paid
constexpr int64_t kWorthCapturing = 32;  // replays that pay for a recording

}  // namespace

SignatureEntry::SignatureEntry(const GraphOptions& options, const Signature& of)
    : signature(of), verify(options.verify_interval), check(options.check, options.check_budget, of.checks) {
  report.signature = signature.inputs;
  report.kind = to_string(signature.kind);
}

bool SignatureEntry::has_paid() const { return report.replays >= kWorthCapturing * recordings; }

bool SignatureEntry::record_again(const std::optional<StepProgram::Place>& changed, bool too_often,
                                  int64_t eager_steps_before) {
  constexpr std::size_t kMaxChanging = 64;
  check.verified();
  differing_in_a_row = 0;
  if (changed && changing.size() < kMaxChanging && std::ranges::find(changing, *changed) == changing.end()) {
    changing.push_back(*changed);
  } else if (recordings >= kFreeRecordings && (too_often || !has_paid())) {
    return false;
  }
  drop();
  eager_steps = eager_steps_before;
  return true;
}

void SignatureEntry::retry_later() {
  constexpr int64_t kFirst = 256;
  retry_at = report.eager_steps + (kFirst << std::min<int64_t>(retries++, 20));
  recordings = 0;
  differing_before_retry = report.differing;
}

void SignatureEntry::drop() {
  check.verified();
  state = State::kSeen;
  step.reset();
  retry_at = std::numeric_limits<int64_t>::max();
  eager_steps = 0;
  report.signature = signature.inputs;
}

void SignatureEntry::give_up(std::string reason, bool has_variants) {
  state = State::kEager;
  step.reset();
  report.reason = std::move(reason);
  report.signature = signature.inputs + (has_variants ? ", reads other values" : "");
}

void SignatureEntry::name_reads() {
  report.signature = signature.inputs + (reads_values() ? ", reads " + step->reads()->values() : "");
}

SignatureCache::Choice SignatureCache::choose(const StepCode& step, const MicroBatches& micro_batches) {
  Choice choice = choose_by_reads(find(step, micro_batches), micro_batches);
  latest_ = choice.entry;
  return choice;
}

SignatureCache::Variants& SignatureCache::find(const StepCode& step, const MicroBatches& micro_batches) {
  key_.clear();
  append_settings(key_, on_gpu_);
  append_inputs_key(micro_batches, written_, key_);
  step.append_key(key_);
  if (found_ != nullptr && key_ == latest_key_) return *found_;
  Variants& variants = entries_[key_];
  if (variants.empty()) {
    const int64_t plan = step.plan_version();
    drop_if([plan](const SignatureEntry& entry) { return entry.signature.plan_version < plan; });  // the report stays
    add(variants, {key_, describe(micro_batches), step.kind(), plan, checks_of(step, micro_batches)});
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

std::shared_ptr<int64_t> SignatureCache::checks_of(const StepCode& step, const MicroBatches& micro_batches) {
  std::erase_if(checks_, [](const auto& item) { return item.second.expired(); });
  Key key;
  append_settings(key, on_gpu_);
  append_inputs_key(micro_batches, written_, key, Sizes::kLeftOut);
  step.append_key(key);
  std::weak_ptr<int64_t>& known = checks_[key];
  std::shared_ptr<int64_t> checks = known.lock();
  if (!checks) known = checks = std::make_shared<int64_t>(0);
  return checks;
}

SignatureEntry& SignatureCache::add(Variants& variants, const Signature& signature) {
  variants.push_back(std::make_unique<SignatureEntry>(options_, signature));
  order_.push_back(variants.back().get());
  return *variants.back();
}

SignatureCache::Choice SignatureCache::choose_by_reads(Variants& variants, const MicroBatches& micro_batches) {
  constexpr std::size_t kMaxVariants = 8, kMaxUnused = 4;  // the latter without one that was ever replayed
  if (variants.size() == 1 && !variants.front()->reads_values()) return {variants.front().get()};
  for (const auto& entry : variants) {
    if (entry->state != State::kCaptured || (entry->reads_values() && !entry->step->reads()->holds(micro_batches)))
      continue;
    if (std::ranges::any_of(variants, [&](const auto& other) { return other->last_use > entry->last_use; }))
      ++entry->returns;
    return {entry.get()};
  }
  for (const State state : {State::kSeen, State::kEager}) {
    const auto found = std::ranges::find_if(variants, [state](const auto& entry) { return entry->state == state; });
    if (found != variants.end()) return {found->get()};
  }
  const bool any_replayed = std::ranges::any_of(variants, [](const auto& entry) { return entry->report.replays > 0; });
  if (variants.size() < (any_replayed ? kMaxVariants : kMaxUnused)) {
    return {&add(variants, Signature(variants.front()->signature))};
  }
  // Values that change seldom: the next ones may take the place of those that have paid for it.
  SignatureEntry* oldest =
      std::ranges::min_element(variants, {}, [](const auto& entry) { return entry->last_use; })->get();
  if (!oldest->has_paid()) return give_up(variants);
  oldest->drop();
  return {oldest};
}

// What came back stays captured, one entry runs eager for all other values.
SignatureCache::Choice SignatureCache::give_up(Variants& variants) {
  const auto reading = std::ranges::find_if(variants, [](const auto& entry) { return entry->reads_values(); });
  const std::string reason =
      (*reading)->step->reads()->changed() +
      " reads a value back to the host that changes from step to step; keep it a tensor (item(), bool(tensor) and "
      "printing are what cause this), or name what it depends on in Task::graph_key";
  const auto unused = std::ranges::find_if(variants, [](const auto& entry) { return entry->returns == 0; });
  SignatureEntry& heir = unused == variants.end() ? add(variants, Signature(variants.front()->signature)) : **unused;
  heir.drop();
  merge_variants(variants, heir);
  return {&heir, reason};
}

// Lets those go whose values never came back; `heir` takes over what was counted.
void SignatureCache::merge_variants(Variants& variants, SignatureEntry& heir) {
  using R = SignatureReport;
  std::erase_if(variants, [&](const auto& variant) {
    if (variant.get() == &heir || variant->returns > 0) return false;
    R& sum = heir.report;
    for (int64_t R::* count :
         {&R::eager_steps, &R::replays, &R::checked, &R::unchecked, &R::differing, &R::nondeterministic}) {
      sum.*count += variant->report.*count;
    }
    sum.unchecked_in_a_row = std::max(sum.unchecked_in_a_row, variant->report.unchecked_in_a_row);
    sum.check_seconds += variant->report.check_seconds;
    std::erase(order_, variant.get());
    if (latest_ == variant.get()) latest_ = nullptr;
    return true;
  });
}

bool SignatureCache::add_written(const WrittenMemory::Ranges& ranges, const MicroBatches& micro_batches) {
  Key before, after;
  append_inputs_key(micro_batches, written_, before);
  written_.add(ranges);
  append_inputs_key(micro_batches, written_, after);
  return before != after;
}

void SignatureCache::warn_of_changing_keys() const {
  if (new_in_a_row_ != 32) return;
  log_warning(
      "[GraphTrainer] each of the last 32 steps had a signature of its own, so none was captured: shapes, numbers or "
      "texts of the batch, Task::graph_key, or a setting change at every step. Pad the batches, leave such texts out, "
      "or keep the others constant");
}

// A key that never comes back must not cost memory for ever.
void SignatureCache::forget_oldest() {
  constexpr std::size_t kMaxEntries = 1024;
  if (order_.size() <= kMaxEntries) return;
  const SignatureEntry* newest = order_.back();
  SignatureEntry* oldest = least_recently_used(order_, [&](const SignatureEntry& entry) {
    return entry.state == State::kSeen && &entry != newest && !has_variants(entry);
  });
  if (oldest == nullptr) return;
  std::erase(order_, oldest);
  if (latest_ == oldest) latest_ = nullptr;
  entries_.erase(Key(oldest->signature.key));
  found_ = nullptr;
}

int64_t SignatureCache::bytes() const {
  int64_t bytes = 0;
  for (const SignatureEntry* entry : order_) bytes += entry->bytes();
  return bytes;
}

void SignatureCache::evict(const SignatureEntry& newest) {
  while (bytes() > options_.cache_bytes) {
    SignatureEntry* oldest = least_recently_used(
        order_, [&newest](const SignatureEntry& entry) { return entry.bytes() > 0 && &entry != &newest; });
    if (oldest == nullptr) return;
    oldest->drop();
    if (std::exchange(warned_of_budget_, true)) continue;
    log_warning(c10::str("[GraphTrainer] captured steps take more than graph.cache_bytes = ", options_.cache_bytes,
                         "; the least recently used is dropped and captured again when it comes back"));
  }
}

bool SignatureCache::is_present(const SignatureEntry& entry, const StepCode& step) const {
  Key settings;
  append_settings(settings, on_gpu_);
  return std::equal(settings.begin(), settings.end(), entry.signature.key.begin()) && is_of(entry, step);
}

void SignatureCache::drop_outdated(const StepCode& step) {
  drop_if([&step](const SignatureEntry& entry) { return !is_of(entry, step); });
}

int64_t SignatureCache::further_eager_steps() const {
  constexpr int64_t kFew = 8, kReplays = 4;  // that make up for a recording
  constexpr int64_t kCosts = 3;              // steps, about
  int64_t recordings = 0, replays = 0;
  for (const SignatureEntry* entry : order_) {
    recordings += entry->recordings;
    replays += entry->report.replays;
  }
  return recordings < kFew || replays >= kReplays * recordings ? 0 : kCosts;
}

void SignatureCache::must_check() {
  for (SignatureEntry* entry : order_) {
    entry->noticed = true;
    options_.check == Check::kOff ? entry->verify.must_verify() : entry->check.must_check();
  }
}

void SignatureCache::must_check_if_lost(bool may_be_hidden) {
  bool lost = false;
  for (const SignatureEntry* entry : order_) {
    if (entry->state == SignatureEntry::State::kCaptured) lost = entry->step->lost_outside(may_be_hidden) || lost;
  }
  if (lost) must_check();
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
