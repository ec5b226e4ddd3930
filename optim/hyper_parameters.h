#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace duet {

// The numbers of an optimizer that may change during a run, per parameter group ("lr", "weight_decay",
// "momentum", ...). A new value takes effect at the next step, in both modes.
class HyperParameters {
 public:
  virtual ~HyperParameters() = default;
  virtual std::size_t group_count() const = 0;
  // Every name that some group has.
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(std::size_t group, const std::string& name) const = 0;
  // The value that the last step used, or that was set since. Both throw ConfigError for a group or a name that is not
  // there; set() for a value outside the number's range too.
  virtual double get(std::size_t group, const std::string& name) const = 0;
  virtual void set(std::size_t group, const std::string& name, double value) = 0;

  // The value of a number before the step that follows `applied` steps.
  using Curve = std::function<double(std::size_t group, int64_t applied)>;
  // From now on `name` follows `curve` in every group that has it. Steps that were skipped do not count, and finding
  // that out costs no read from the device. A set() in between holds for the next step only.
  virtual void set_schedule(const std::string& name, Curve curve) = 0;
  // The number keeps the value it has.
  virtual void clear_schedule(const std::string& name) = 0;
  // Steps applied so far; reads the device if steps may be skipped.
  virtual int64_t applied() const = 0;
};

}  // namespace duet
