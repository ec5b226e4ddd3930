#pragma once

#include <duet/core/update_rule.h>
#include <duet/graph/address_ledger.h>
#include <duet/graph/capture_method.h>
#include <duet/graph/graph_options.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace duet {

// Runs updates: eager at the first sight of a signature, captured at the next, replayed from then on. Knows every
// signature seen, keeps captured steps within a byte budget, and decides when a replay may not be trusted.
class StepCache {
 public:
  StepCache(CaptureMethod method, const GraphOptions& options) : method_(std::move(method)), options_(options) {}

  UpdateOutput run(UpdateRule& rule, const Window& window, UpdatePoints& points);
  // Likewise, op by op whatever was captured.
  UpdateOutput run_eager(UpdateRule& rule, const Window& window, UpdatePoints& points);
  // What run() would do now: 1 run op by op, 2 capture, 3 replay, 4 replay and compare.
  double plan(UpdateRule& rule, const Window& window, const UpdatePoints& points);

  // After the rule's host numbers were replaced: lets go of the steps that were captured with others.
  void drop_outdated(const UpdateRule& rule);

  std::vector<SignatureReport> report() const;
  int64_t eager_updates() const { return eager_updates_; }
  int64_t replays() const { return replays_; }
  std::string program_text(const NamedTensors& names) const;

 private:
  enum class State { kSeen, kCaptured, kEager };
  struct Entry {
    SignatureReport report;
    State state = State::kSeen;
    std::unique_ptr<CapturedStep> step;
    int64_t sights = 0;             // eager updates since it was new or was dropped
    int64_t unverified = 0;         // replays since the last comparison
    int64_t next_verification = 1;  // replays until the next one
    bool suspect = false;           // something was noticed: the next replay is compared, those before it were fine
    int64_t last_use = 0;
  };
  using Key = std::vector<int64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };

  UpdateOutput run_one(UpdateRule& rule, const Window& window, UpdatePoints& points);
  void warn_of_changing_keys();
  void forget_old_sights();
  Entry& find(UpdateRule& rule, const Window& window);
  void watch_addresses();
  UpdateOutput run_eager(Entry& entry, UpdateRule& rule, const Window& window, UpdatePoints& points);
  UpdateOutput capture(Entry& entry, UpdateRule& rule, const Window& window, UpdatePoints& points);
  UpdateOutput replay(Entry& entry, UpdateRule& rule, const Window& window, UpdatePoints& points);
  UpdateOutput verify(Entry& entry, UpdateRule& rule, const Window& window, UpdatePoints& points);
  void give_up(Entry& entry, std::string reason);
  void drop(Entry& entry);
  void keep_budget(const Entry& newest);

  CaptureMethod method_;  // its device outlives the steps below
  GraphOptions options_;
  std::unordered_map<Key, std::unique_ptr<Entry>, KeyHash> entries_;
  std::vector<Entry*> order_;  // of first sight
  Entry* latest_ = nullptr;
  Key key_;                    // of the current update; kept to reuse its memory
  Key latest_key_;
  AddressLedger ledger_;
  bool ledger_written_ = false;
  int64_t new_in_a_row_ = 0;
  bool warned_of_budget_ = false;
  int64_t updates_ = 0;
  int64_t eager_updates_ = 0;
  int64_t replays_ = 0;
};

}  // namespace duet
