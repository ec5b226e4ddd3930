#include "hooks/detail/log_window.h"
#include <algorithm>
#include <map>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include "base/detail/pattern.h"
#include "base/error.h"
#include "base/log.h"

namespace duet {

namespace {

constexpr std::size_t kLongest = 1'000'000;

std::size_t kept_for(int64_t window_size) {
  return window_size > 0 ? std::min(static_cast<std::size_t>(window_size), kLongest) : kLongest;
}

}  // namespace

LogWindow::Key LogWindow::make_key(const std::string& name, bool measured) const {
  const bool smoothed = measured || Pattern("[LoggerHook] mean_pattern", options_.mean_pattern).found_in(name);
  std::vector<Statistic> statistics;
  statistics.push_back({{name, smoothed ? "mean" : "current", smoothed ? options_.window_size : 1, name}, measured});
  for (const LogStatistic& own : options_.custom_cfg) {
    if (own.data_src != name) continue;
    if (own.log_name.empty()) {
      statistics.front() = {{name, own.method_name, own.window_size, name}};
    } else {
      statistics.push_back({own});
    }
  }
  std::size_t keep = 1;
  for (const Statistic& statistic : statistics) {
    if (statistic.method_name != "current") keep = std::max(keep, kept_for(statistic.window_size));
  }
  return {name, std::move(statistics), ValueHistory(measured ? kLongest : keep), keep, measured};
}

LogWindow::Key& LogWindow::key(const std::string& name, bool measured) {
  const auto is_it = [&](const Key& key) { return key.measured == measured && key.name == name; };
  if (cursor_ >= keys_.size() || !is_it(keys_[cursor_])) {
    const auto found = std::find_if(keys_.begin(), keys_.end(), is_it);
    cursor_ = static_cast<std::size_t>(found - keys_.begin());
    if (found == keys_.end()) keys_.push_back(make_key(name, measured));
  }
  Key& key = keys_[cursor_++];
  ++key.in_epoch;
  ++key.since_read;
  return key;
}

void LogWindow::add(const std::string& name, const at::Tensor& value) {
  if (value.defined()) key(name, /*measured=*/false).values.add(value);
}

void LogWindow::add(const std::string& name, double value) { key(name, /*measured=*/true).values.add(value); }

void LogWindow::start_epoch() {
  for (Key& key : keys_) key.in_epoch = 0;
}

std::size_t LogWindow::window_of(const Key& key, const Statistic& statistic) {
  if (statistic.window_size == kGlobalWindow) return key.values.size();
  const int64_t window = statistic.window_size == kEpochWindow ? key.in_epoch : statistic.window_size;
  return static_cast<std::size_t>(statistic.since_read ? std::max(window, key.since_read) : window);
}

LogWindow::Values LogWindow::read() {
  bring_over();
  warn_of_unknown_sources();
  Values values;
  for (Key& key : keys_) {
    if (key.since_read == 0) continue;
    for (const Statistic& statistic : key.statistics) {
      values.emplace_back(statistic.log_name, key.values.statistic(statistic.method_name, window_of(key, statistic)));
    }
    key.values.trim(key.keep);
    key.since_read = 0;
  }
  return values;
}

// One copy from each device that values lie on.
void LogWindow::bring_over() {
  const at::NoGradGuard no_grad;
  std::map<std::string, std::vector<Key*>> keys_on;
  std::map<std::string, std::vector<at::Tensor>> values_on;
  for (Key& key : keys_) {
    const at::Tensor values = key.values.unread();
    if (!values.defined()) continue;
    keys_on[values.device().str()].push_back(&key);
    values_on[values.device().str()].push_back(values);
  }
  for (const auto& [device, values] : values_on) {
    const at::Tensor numbers = at::cat(values).cpu();
    int64_t offset = 0;
    for (std::size_t i = 0; i < values.size(); offset += values[i++].numel()) {
      keys_on[device][i]->values.take(numbers.narrow(0, offset, values[i].numel()));
    }
  }
}

void LogWindow::warn_of_unknown_sources() {
  if (std::exchange(warned_, true)) return;
  for (const LogStatistic& statistic : options_.custom_cfg) {
    std::string known;
    bool found = false;
    for (const Key& key : keys_) {
      found = found || key.name == statistic.data_src;
      known += (known.empty() ? "" : ", ") + key.name;
    }
    if (!found) {
      log_warning("[LoggerHook] custom_cfg asks for '" + statistic.data_src +
                  "', which this run does not log so far; it logs " + known);
    }
  }
}

StateDict LogWindow::state_dict() const {
  StateDict state;
  state.set("keys", StateValue(static_cast<int64_t>(keys_.size())));
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    const Key& key = keys_[i];
    StateDict part;
    part.set("name", StateValue(key.name));
    part.set("measured", StateValue(key.measured));
    if (!key.measured) {
      part.set("in_epoch", StateValue(key.in_epoch));
      part.set("since_read", StateValue(key.since_read));
      part.put("values", key.values.state_dict());
    }
    state.put(std::to_string(i), part);
  }
  return state;
}

void LogWindow::load_state_dict(const StateDict& state) {
  std::vector<Key> keys;
  const int64_t count = state.has("keys") ? state.integer("keys") : 0;
  for (int64_t i = 0; i < count; ++i) {
    const StateDict part = state.part(std::to_string(i));
    Key key = make_key(part.text("name"), part.flag("measured"));
    if (!key.measured) {
      key.in_epoch = part.integer("in_epoch");
      key.since_read = part.integer("since_read");
      key.values = ValueHistory::from_state(part.part("values"), key.keep);
      if (key.since_read > 0 && key.values.size() == 0) {
        throw CheckpointError("[LoggerHook] found no values of '" + key.name +
                              "' in its state, expected some; "
                              "load weights alone to do without it");
      }
    }
    keys.push_back(std::move(key));
  }
  keys_ = std::move(keys);
  cursor_ = 0;
}

}  // namespace duet
