#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/state_dict.h"
#include "hooks/detail/shared.h"
#include "hooks/logger_hook.h"

namespace duet {

// What steps give, kept on the device until a line is written, and the numbers of that line. A mean of times covers
// at least the steps since the line before: one of them holds the wait for the device.
class LogWindow : public Stateful {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  // `options` are those of a LoggerHookOptions that was checked.
  explicit LogWindow(LogWindowOptions options = {}) : options_(std::move(options)) {}

  void start_epoch();
  // Values come in the same order at every step, or nearly so; that makes add() cheap: no copy and no wait.
  void start_step() { cursor_ = 0; }
  void add(const std::string& name, const at::Tensor& value);
  // Times and the like: not part of the state, since a resumed run measures its own.
  void add(const std::string& name, double value);

  // The numbers of the names that got a value since the last read, in the order in which names were first seen; NaN
  // where one of the values is. Waits for the device, once.
  Values read();

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Key {
    std::string name;
    bool measured;                         // added as a double
    std::vector<LogStatistic> statistics;  // the first one: under its own name
    std::size_t keep;                      // values that the statistics look back on
    bool spans_line;                       // the first one: of all values since the last read if these are more
    std::deque<double> values{};           // read, oldest first
    std::deque<at::Tensor> unread{};       // newer ones, on their device
    int64_t in_epoch = 0;                  // values since the epoch began
    int64_t since_read = 0;

    at::Tensor joined() const { return numbers_of({unread.begin(), unread.end()}); }
    void take(const at::Tensor& numbers);
    double value_of(const LogStatistic& statistic) const;
  };

  Key& key(const std::string& name, bool measured);
  Key make_key(const std::string& name, bool measured) const;
  void bring_over();
  void warn_of_unknown_sources();

  LogWindowOptions options_;
  std::vector<Key> keys_;
  std::size_t cursor_ = 0;
  bool warned_ = false;
};

}  // namespace duet
