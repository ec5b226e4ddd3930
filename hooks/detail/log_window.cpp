#include "hooks/detail/log_window.h"
#include <algorithm>
#include <numeric>
#include <regex>
#include <set>
#include <tuple>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"

namespace duet {

namespace {

constexpr std::size_t kLongest = 1'000'000;

bool is_method(const std::string& name) {
  for (const char* method : {"mean", "median", "min", "max", "current"}) {
    if (name == method) return true;
  }
  return false;
}

std::size_t kept_for(int64_t window_size) {
  return window_size > 0 ? std::min(static_cast<std::size_t>(window_size), kLongest) : kLongest;
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  const bool single = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.dim() == 0; });
  if (single) return at::stack(tensors);
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

std::tuple<int, int, int> place_and_type(const at::Tensor& tensor) {
  const at::Device device = tensor.device();
  return {static_cast<int>(device.type()), device.index(), static_cast<int>(tensor.scalar_type())};
}

// All numbers of tensors of one device, in one copy. Neighbours of one type are joined first.
at::Tensor read_device(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (auto first = tensors.begin(); first != tensors.end();) {
    const auto last = std::find_if(
        first, tensors.end(), [&](const at::Tensor& tensor) { return tensor.scalar_type() != first->scalar_type(); });
    parts.push_back(joined({first, last}).to(at::kDouble));
    first = last;
  }
  return (parts.size() == 1 ? parts.front() : at::cat(parts)).to(at::kCPU);
}

// The numbers in the order of the tensors: one copy from each device that they lie on.
std::vector<double> read_numbers(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<std::size_t> order(tensors.size()), offsets(tensors.size() + 1, 0);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    offsets[i + 1] = offsets[i] + static_cast<std::size_t>(tensors[i].numel());
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return place_and_type(tensors[a]) < place_and_type(tensors[b]);
  });
  std::vector<double> numbers(offsets.back());
  for (auto first = order.begin(); first != order.end();) {
    const at::Device device = tensors[*first].device();
    const auto last = std::find_if(first, order.end(), [&](std::size_t i) { return tensors[i].device() != device; });
    std::vector<at::Tensor> here;
    for (auto i = first; i != last; ++i) here.push_back(tensors[*i]);
    const at::Tensor all = read_device(here);
    const double* next = all.const_data_ptr<double>();
    for (auto i = first; i != last; ++i) {
      const std::size_t count = offsets[*i + 1] - offsets[*i];
      std::copy(next, next + count, numbers.begin() + static_cast<std::ptrdiff_t>(offsets[*i]));
      next += count;
    }
    first = last;
  }
  return numbers;
}

}  // namespace

void LogStatistic::validate() const {
  require<ConfigError>(!data_src.empty(),
                       "[LoggerHook] a statistic of custom_cfg has no data_src, expected the name of a "
                       "logged number; add it");
  if (!is_method(method_name)) {
    throw ConfigError("[LoggerHook] found method_name '" + method_name + "' for '" + data_src +
                      "', expected mean, median, min, max or current; correct it");
  }
  if (window_size < kGlobalWindow) {
    throw ConfigError(c10::str("[LoggerHook] found window_size ", window_size, " for '", data_src,
                               "', expected at least 1 step, epoch or global; correct it"));
  }
}

void LogWindowOptions::validate() const {
  if (window_size < 1) {
    throw ConfigError(c10::str("[LoggerHook] found window_size ", window_size, ", expected at least 1 step; raise it"));
  }
  try {
    const std::regex pattern(mean_pattern);
  } catch (const std::regex_error& error) {
    throw ConfigError("[LoggerHook] found mean_pattern '" + mean_pattern + "' (" + error.what() +
                      "), expected a regular expression; correct it");
  }
  std::set<std::string> names;
  for (const LogStatistic& statistic : custom_cfg) {
    statistic.validate();
    const std::string& name = statistic.log_name.empty() ? statistic.data_src : statistic.log_name;
    if (!names.insert(name).second) {
      throw ConfigError("[LoggerHook] custom_cfg logs two numbers as '" + name +
                        "', expected different names; give one of them another log_name");
    }
  }
}

LogWindow::LogWindow(LogWindowOptions options) : options_(std::move(options)) { options_.validate(); }

LogWindow::Key LogWindow::make_key(const std::string& name, bool measured) const {
  const bool smoothed = measured || std::regex_search(name, std::regex(options_.mean_pattern));
  std::vector<Statistic> statistics;
  statistics.push_back({name, smoothed ? "mean" : "current", smoothed ? options_.window_size : 1, measured});
  for (const LogStatistic& own : options_.custom_cfg) {
    if (own.data_src != name) continue;
    const Statistic statistic{own.log_name.empty() ? name : own.log_name, own.method_name, own.window_size, false};
    if (own.log_name.empty()) {
      statistics.front() = statistic;
    } else {
      statistics.push_back(statistic);
    }
  }
  std::size_t keep = 1;
  for (const Statistic& statistic : statistics) {
    keep = std::max(keep, statistic.method == "current" ? 1 : kept_for(statistic.window_size));
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
      values.emplace_back(statistic.log_name, key.values.statistic(statistic.method, window_of(key, statistic)));
    }
    key.values.trim(key.keep);
    key.since_read = 0;
  }
  return values;
}

void LogWindow::bring_over() {
  std::vector<at::Tensor> tensors;
  for (Key& key : keys_) key.values.unread(tensors);
  if (tensors.empty()) return;
  const std::vector<double> numbers = read_numbers(tensors);
  const double* next = numbers.data();
  for (Key& key : keys_) next = key.values.take(next);
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
