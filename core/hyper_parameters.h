#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace duet {

// The numbers of an optimizer that may change during a run, per parameter group ("lr", "weight_decay",
// "momentum", ...). A new value takes effect at the next update, in both modes.
class HyperParameters {
 public:
  virtual ~HyperParameters() = default;
  virtual std::size_t group_count() const = 0;
  virtual std::vector<std::string> names() const = 0;
  // Both throw ConfigError for a group or a name that is not there.
  virtual double get(std::size_t group, const std::string& name) const = 0;
  virtual void set(std::size_t group, const std::string& name, double value) = 0;
};

}  // namespace duet
