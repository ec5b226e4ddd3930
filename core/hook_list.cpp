#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <stdexcept>
#include <typeinfo>
#include <utility>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/detail/step_stopped.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "core/hook.h"
#include "distributed/detail/rank_error.h"

namespace duet {

namespace {

using Member = void (Hook::*)(TrainContext&);

struct Point {
  const char* name;
  Member member;
};

// In the order of HookPoint.
constexpr std::array<Point, static_cast<std::size_t>(HookPoint::kCount)> kPoints = {{
#define DUET_POINT(point, member) {#member, &Hook::member},
    DUET_HOOK_POINTS(DUET_POINT)
#undef DUET_POINT
        {"in_step", nullptr},  // takes a StepView
}};

// Where everybody must be told, whatever the others did.
bool reaches_all(HookPoint point) {
  switch (point) {
    case HookPoint::kAfterTrain:
    case HookPoint::kAfterTest:
    case HookPoint::kAfterPredict:
    case HookPoint::kAfterRun:
    case HookPoint::kOnException:
    case HookPoint::kAfterLoadCheckpoint: return true;
    default: return false;
  }
}

// Runs `body`; what it throws leaves as the same kind of error with `where()` before its text.
template <class Body, class Where>
void with_place(const Body& body, const Where& where) {
  try {
    body();
  } catch (const SaveRefused&) {
    throw;  // no failure of the hook's
  } catch (const PeerError&) {
    throw;  // nor is the loss of another rank
  } catch (const Error& error) {
    const char kind = packed_error(std::current_exception()).front();
    throw_packed(kind + where() + error.what(), error.exit_code());
  } catch (const c10::Error& error) {  // with its kind its stack trace would be kept
    throw std::runtime_error(where() + error.what_without_backtrace());
  } catch (const std::exception& error) {
    if (is_step_stopped(error)) throw;
    // The user's own types go on as they are, for whoever catches them.
    if (typeid(error) != typeid(std::runtime_error)) {
      log_error(where() + error.what());
      throw;
    }
    throw std::runtime_error(where() + error.what());
  }
}

// A span "hook:<name>:<point>" for profilers; next to nothing without one.
class Traced {
 public:
  Traced(const Hook& hook, HookPoint point) : span_(at::RecordScope::USER_SCOPE), outer_(innermost_) {
    if (span_.isActive()) span_.before("hook:" + hook.name() + ":" + to_string(point));
    innermost_ = this;
  }
  ~Traced() { innermost_ = outer_; }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

  static void end_innermost() {
    if (innermost_ != nullptr) innermost_->span_.end();
  }

 private:
  static thread_local Traced* innermost_;

  at::RecordFunction span_;
  Traced* outer_;  // that of a hook point whose hook called this one
};

thread_local Traced* Traced::innermost_ = nullptr;

std::string place(const Hook& hook, HookPoint point, int64_t step) {
  return c10::str("[HookList] hook '", hook.name(), "' failed at ", to_string(point), " of step ", step, ": ");
}

}  // namespace

void HookList::end_span() { Traced::end_innermost(); }

const char* to_string(HookPoint point) {
  const auto index = static_cast<std::size_t>(point);
  return index < kPoints.size() ? kPoints[index].name : "no hook point";
}

void HookList::add(std::unique_ptr<Hook> hook, std::optional<int> priority) {
  require<ConfigError>(hook != nullptr, "[HookList] found no hook, expected one; give add() a hook");
  require<ConfigError>(calls_ == 0,
                       "[HookList] found a hook added from inside of a hook, expected a list that stays as it "
                       "is while it is called; add it before training");
  const std::string name = hook->name();
  if (name.empty() || name.find('.') != std::string::npos) {
    throw ConfigError("[HookList] found hook name '" + name +
                      "', expected a text without dots; rename it (dots part the names of a checkpoint)");
  }
  std::erase_if(hooks_, [&](const Entry& entry) { return entry.hook->name() == name && entry.hook->gives_way(); });
  require<ConfigError>(find(name) == nullptr,
                       "[HookList] found a second hook '" + name + "', expected unique names; set the options of the " +
                           "one that is there (in a config default_hooks." + name + "), or rename one of them");
  const int in_force = priority.value_or(hook->priority());
  if (in_force < kHighest || in_force > kLowest) {
    throw ConfigError(c10::str("[HookList] found priority ", in_force, " of hook '", name,
                               "', expected 0 to 100; choose one of them"));
  }
  hooks_.push_back({std::move(hook), in_force});
  try {
    order_ = sorted();
  } catch (...) {
    hooks_.pop_back();
    throw;
  }
}

void HookList::call(HookPoint point, TrainContext& context) {
  call(point, context, [](const Hook&) { return true; });
}

void HookList::call_stateless(HookPoint point, TrainContext& context) {
  call(point, context, [](const Hook& hook) { return hook.state_dict().empty(); });
}

template <class TakesPart>
void HookList::call(HookPoint point, TrainContext& context, TakesPart takes_part) {
  const Member member = kPoints.at(static_cast<std::size_t>(point)).member;
  require<ConfigError>(member != nullptr, "[HookList] found in_step in call(); use HookList::in_step()");
  ++calls_;
  const auto done = c10::make_scope_exit([this] { --calls_; });
  step_ = context.progress.step;
  std::exception_ptr first;
  for (Hook* hook : order_) {
    if (!hook->uses(point) || !takes_part(*hook)) continue;
    const Traced traced(*hook, point);
    try {
      with_place([&] { (hook->*member)(context); }, [&] { return place(*hook, point, context.progress.step); });
    } catch (...) {
      if (!reaches_all(point)) throw;
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void HookList::in_step(StepView& context) {
  ++calls_;
  const auto done = c10::make_scope_exit([this] { --calls_; });
  for (Hook* hook : order_) {
    if (!hook->uses(HookPoint::kInStep)) continue;
    with_place([&] { hook->in_step(context); }, [&] { return place(*hook, HookPoint::kInStep, step_); });
  }
}

void HookList::on(HookPoint point, std::function<void(TrainContext&)> callback, std::string name, int priority) {
  for (int number = 1; name.empty(); ++number) {
    std::string free = concat_text("on_", to_string(point), "_", number);
    if (find(free) == nullptr) name = std::move(free);
  }
  auto hook = std::make_unique<CallbackHook>(std::move(name), priority);
  hook->on(point, std::move(callback));
  add(std::move(hook));
}

bool HookList::uses(HookPoint point) const {
  return std::any_of(order_.begin(), order_.end(), [point](const Hook* hook) { return hook->uses(point); });
}

bool HookList::wants_outputs() const {
  return std::any_of(order_.begin(), order_.end(), [](const Hook* hook) { return hook->wants_outputs(); });
}

const HookList::Entry* HookList::entry(const std::string& name) const {
  const auto found = std::ranges::find(hooks_, name, [](const Entry& entry) { return entry.hook->name(); });
  return found == hooks_.end() ? nullptr : &*found;
}

Hook* HookList::find(const std::string& name) const {
  const Entry* const found = entry(name);
  return found == nullptr ? nullptr : found->hook.get();
}

std::vector<std::string> HookList::order() const {
  std::vector<std::string> names;
  for (const Hook* hook : order_) names.push_back(hook->name());
  return names;
}

StateDict HookList::state_dict() const {
  StateDict state;
  for (const Entry& entry : hooks_) state.put(entry.hook->name(), entry.hook->state_dict());
  return state;
}

void HookList::load_state_dict(const StateDict& state) {
  std::set<std::string> saved;
  for (const auto& [name, tensor] : state.tensors()) saved.insert(name.substr(0, name.find('.')));
  for (const auto& [name, value] : state.values()) saved.insert(name.substr(0, name.find('.')));
  for (const std::string& name : saved) {
    if (Hook* hook = find(name)) {
      with_place([&] { hook->load_state_dict(state.part(name)); },
                 [&] { return "[HookList] hook '" + name + "' cannot take its state: "; });
    } else {
      log_warning("[HookList] the checkpoint holds state of hook '" + name + "', which this run does not have");
    }
  }
}

void HookList::restore(const StateDict& before) {
  for (const Entry& entry : hooks_) {
    const std::string name = entry.hook->name();
    const std::exception_ptr error = caught([&] { entry.hook->load_state_dict(before.part(name)); });
    if (error) log_error("[HookList] hook '" + name + "' cannot take back its own state: " + text_of(error));
  }
}

std::vector<const HookList::Entry*> HookList::predecessors(const Entry& of) const {
  std::vector<const Entry*> found;
  for (const std::string& name : of.hook->after()) {
    if (const Entry* before = entry(name)) found.push_back(before);
  }
  return found;
}

// Repeatedly the hook of lowest (priority, registration) whose predecessors are placed.
std::vector<Hook*> HookList::sorted() const {
  std::vector<const Entry*> open;
  for (const Entry& entry : hooks_) open.push_back(&entry);
  std::ranges::stable_sort(open, {}, &Entry::priority);
  const auto may_come = [&](const Entry* entry) {
    return std::ranges::none_of(predecessors(*entry),
                                [&](const Entry* before) { return std::ranges::find(open, before) != open.end(); });
  };
  std::vector<Hook*> order;
  while (!open.empty()) {
    const auto next = std::ranges::find_if(open, may_come);
    if (next == open.end()) {
      std::vector<std::string> names;
      for (const Entry* entry : open) names.push_back(entry->hook->name());
      throw ConfigError("[HookList] each of the hooks " + join(names) +
                        " comes after another of them, expected an order; remove a name from one's after()");
    }
    order.push_back((*next)->hook.get());
    open.erase(next);
  }
  return order;
}

std::vector<HookPlace> HookList::places(HookPoint point) const {
  std::vector<HookPlace> places;
  const Entry* previous = nullptr;
  for (const Hook* hook : order_) {
    if (!hook->uses(point)) continue;
    const Entry& entry = *this->entry(hook->name());
    std::string reason = "priority " + priority_text(entry.priority);
    if (entry.priority != hook->priority()) reason += " instead of its own " + priority_text(hook->priority());
    std::vector<std::string> before;
    for (const Entry* other : predecessors(entry)) before.push_back(other->hook->name());
    if (!before.empty()) reason += "; after " + c10::Join(", ", before) + ", as it declares";
    const bool tie = previous != nullptr && previous->priority == entry.priority && previous < &entry;
    if (tie) reason += "; added after " + previous->hook->name();
    places.push_back({hook->name(), entry.priority, reason});
    previous = &entry;
  }
  return places;
}

int HookList::priority_of(const std::string& name) const {
  const Entry* const found = entry(name);
  require<ConfigError>(found != nullptr, "[HookList] found no hook '" + name + "', expected one of this list");
  return found->priority;
}

}  // namespace duet
