#include "hooks/detail/log_window.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include "base/detail/pattern.h"
#include "base/detail/text.h"
#include "base/log.h"

namespace duet {

namespace {

constexpr std::size_t kLongest = 1'000'000;

template <class Value>
void keep_last(std::deque<Value>& values, std::size_t count) {
  while (values.size() > count) values.pop_front();
}

}  // namespace

LogWindow::Key LogWindow::make_key(const std::string& name, bool measured) const {
  const bool smoothed = measured || Pattern("[LoggerHook] mean_pattern", options_.mean_pattern).found_in(name);
  Key key{
      name, measured, {{name, smoothed ? "mean" : "current", smoothed ? options_.window_size : 1, name}}, 1, measured};
  for (LogStatistic own : options_.custom_cfg) {
    if (own.data_src != name) continue;
    if (!own.log_name.empty()) {
      key.statistics.push_back(own);
      continue;
    }
    own.log_name = name;
    key.statistics.front() = own;
    key.spans_line = false;
  }
  for (const LogStatistic& statistic : key.statistics) {
    const auto window = static_cast<std::size_t>(statistic.window_size);
    const std::size_t kept = statistic.window_size > 0 ? std::min(window, kLongest) : kLongest;
    if (statistic.method_name != "current") key.keep = std::max(key.keep, kept);
  }
  return key;
}

LogWindow::Key& LogWindow::key(const std::string& name, bool measured) {
  const auto is_it = [&](const Key& key) { return key.measured == measured && key.name == name; };
  if (cursor_ >= keys_.size() || !is_it(keys_[cursor_])) {
    const auto found = std::ranges::find_if(keys_, is_it);
    cursor_ = static_cast<std::size_t>(found - keys_.begin());
    if (found == keys_.end()) keys_.push_back(make_key(name, measured));
  }
  Key& key = keys_[cursor_++];
  ++key.in_epoch;
  ++key.since_read;
  return key;
}

void LogWindow::add(const std::string& name, const at::Tensor& value) {
  if (!value.defined()) return;
  Key& of_name = key(name, /*measured=*/false);
  of_name.unread.push_back(detached(value));
  keep_last(of_name.unread, of_name.keep);
}

void LogWindow::add(const std::string& name, double value) {
  Key& of_name = key(name, /*measured=*/true);
  of_name.values.push_back(value);
  keep_last(of_name.values, kLongest);
}

void LogWindow::start_epoch() {
  for (Key& key : keys_) key.in_epoch = 0;
}

void LogWindow::Key::take(const at::Tensor& numbers) {
  const double* const first = numbers.const_data_ptr<double>();
  values.insert(values.end(), first, first + numbers.numel());
  unread.clear();
}

double LogWindow::Key::value_of(const LogStatistic& statistic) const {
  if (values.empty()) return std::nan("");
  const std::string& method = statistic.method_name;
  int64_t window = statistic.window_size == kEpochWindow ? in_epoch : statistic.window_size;
  if (spans_line && &statistic == &statistics.front()) window = std::max(window, since_read);
  if (statistic.window_size == kGlobalWindow) window = std::ssize(values);
  const auto first = values.end() - std::clamp<std::ptrdiff_t>(window, 1, std::ssize(values));
  const std::vector<double> last(first, values.end());
  if (method == "current") return last.back();
  if (std::ranges::any_of(last, [](double value) { return std::isnan(value); })) return std::nan("");
  if (method == "min") return std::ranges::min(last);
  if (method == "max") return std::ranges::max(last);
  if (method == "median") return median_of(last);
  return std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(last.size());
}

LogWindow::Values LogWindow::read() {
  bring_over();
  warn_of_unknown_sources();
  Values read;
  for (Key& key : keys_) {
    if (key.since_read == 0) continue;
    for (const LogStatistic& statistic : key.statistics) {
      read.emplace_back(statistic.log_name, key.value_of(statistic));
    }
    keep_last(key.values, key.keep);
    key.since_read = 0;
  }
  return read;
}

// One copy from each device that values lie on.
void LogWindow::bring_over() {
  std::map<std::string, std::pair<std::vector<Key*>, std::vector<at::Tensor>>> by_device;
  for (Key& key : keys_) {
    if (key.unread.empty()) continue;
    auto& [keys, values] = by_device[key.unread.back().device().str()];
    keys.push_back(&key);
    values.push_back(key.joined());
  }
  for (const auto& item : by_device) {
    const auto& [keys, values] = item.second;
    const at::Tensor numbers = at::cat(values).cpu();
    int64_t offset = 0;
    for (std::size_t i = 0; i < keys.size(); offset += values[i++].numel()) {
      keys[i]->take(numbers.narrow(0, offset, values[i].numel()));
    }
  }
}

void LogWindow::warn_of_unknown_sources() {
  if (std::exchange(warned_, true)) return;
  std::vector<std::string> known;
  for (const Key& key : keys_) known.push_back(key.name);
  for (const LogStatistic& statistic : options_.custom_cfg) {
    if (std::ranges::count(known, statistic.data_src) > 0) continue;
    log_warning("[LoggerHook] custom_cfg asks for '" + statistic.data_src +
                "', which this run does not log so far; it logs " + join(known));
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
      const std::size_t count = std::min(key.values.size(), key.keep);
      const std::vector<double> read(key.values.end() - static_cast<std::ptrdiff_t>(count), key.values.end());
      if (!read.empty()) part.set("values.read", at::tensor(at::ArrayRef<double>(read)));
      if (!key.unread.empty()) part.set("values.unread", key.joined());
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
      for (const char* values : {"values.read", "values.unread"}) {
        if (part.has(values)) key.take(part.tensor(values).reshape({-1}).to(at::kCPU, at::kDouble).contiguous());
      }
    }
    keys.push_back(std::move(key));
  }
  keys_ = std::move(keys);
  cursor_ = 0;
}

}  // namespace duet
