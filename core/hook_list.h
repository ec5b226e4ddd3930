#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "hook.h"

namespace duet {

class LoadTransaction;

// Where a hook stands and why.
struct HookPlace {
  std::string name;
  int priority = 0;
  std::string reason;  // "priority LOW (70)", "priority 40 instead of its own NORMAL (50)", "priority 50; after ema, as
                       // it declares"
};

// Owns the hooks of a trainer and calls them in one order at every point: by priority, ties by
// registration, declared "after" relations above both.
class HookList : public Stateful {
 public:
  // Throws ConfigError if the name is taken, empty or has a dot, the priority is outside [0, 100], or the relations
  // of after() form a circle. A hook named in after() may be added later, or be absent.
  // `priority` takes the place of the hook's own.
  void add(std::unique_ptr<Hook> hook, std::optional<int> priority = std::nullopt);
  template <class H>
  void add(std::unique_ptr<H> hook, std::optional<int> priority = std::nullopt) {
    add(as_hook(std::move(hook)), priority);
  }
  // A hook of its own that calls `callback` at `point`. Throws ConfigError for in_step: see CallbackHook::on_step.
  void on(HookPoint point, std::function<void(TrainContext&)> callback, std::string name = "", int priority = kNormal);

  // Calls `point` of every hook. duet's errors and std::runtime_error leave with hook, point and step before their
  // text, LibTorch's as std::runtime_error without their stack trace; other exceptions leave as they are, after a line
  // in the log. after_train, after_run and on_exception reach every hook before the first error is rethrown.
  void call(HookPoint point, TrainContext& context);
  void in_step(StepView& context);

  // Whether any hook may act at `point`.
  bool uses(HookPoint point) const;

  Hook* find(const std::string& name) const;
  std::vector<std::string> order() const;
  // The hooks that may act at `point`, in calling order, each with the reason for its place.
  std::vector<HookPlace> places(HookPoint point) const;
  // In force for the hook called `name`. Throws ConfigError if there is none.
  int priority_of(const std::string& name) const;
  std::size_t size() const { return hooks_.size(); }

  StateDict state_dict() const override;
  // Hooks without state in `state` keep theirs. If one cannot take its own, all keep what they had.
  void load_state_dict(const StateDict& state) override;
  // The same as a part of a larger load.
  void load_into(LoadTransaction& parts, const StateDict& state);

 private:
  struct Entry {
    std::unique_ptr<Hook> hook;
    int priority = 0;
  };
  std::vector<const Entry*> predecessors(const Entry& entry) const;  // that its after() names
  std::vector<Hook*> sorted() const;

  std::vector<Entry> hooks_;  // in order of registration
  std::vector<Hook*> order_;  // in calling order
  int64_t step_ = 0;          // of the last call, for messages of in_step
  int calls_ = 0;             // under way
};

}  // namespace duet
