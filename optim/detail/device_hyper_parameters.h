#pragma once

#include <map>
#include <string>
#include <vector>
#include "base/batch.h"
#include "optim/groups/param_group.h"

namespace duet {

// A host number that the device reads: a 0-dim tensor with a fixed address, so that a captured step sees every new
// value.
at::Tensor make_device_scalar(double value, at::ScalarType dtype, at::Device device);

// Writes outside any captured region; on the CPU a plain store, not a dispatched op. Float, double or int64.
void write_device_scalar(const at::Tensor& scalar, double value);
// Waits for the device; on the CPU a plain load. Float, double or int64.
double read_device_scalar(const at::Tensor& scalar);

// CUDA's fused kernels read a float32 learning rate; on the CPU double keeps the value the user gave.
at::ScalarType hyper_parameter_dtype(at::Device device);

// The numbers of every group in one vector on the device, each also a 0-dim tensor with a fixed address, so that a
// captured step sees every new value.
//
// Numbers that follow a curve are looked up on the device: a table holds their values for the next applied steps, and
// how many were applied the device itself counts. The host refills the table once per `kRows` steps.
class DeviceHyperParameters {
 public:
  static constexpr int64_t kRows = 256;

  DeviceHyperParameters(const std::vector<std::map<std::string, double>>& groups, at::Device device);

  std::size_t group_count() const { return index_.size(); }
  std::vector<std::string> names() const;
  bool has(std::size_t group, const std::string& name) const;
  // These throw ConfigError for a group or name that is not there.
  double get(std::size_t group, const std::string& name) const;
  void set(std::size_t group, const std::string& name, double value);
  // The value that begin() found, for kernels that take it from the host. Not of a number with a schedule.
  double at_begin(std::size_t group, const std::string& name) const { return at_begin_[position(group, name)]; }
  // 0-dim, float64 on the CPU, float32 elsewhere.
  const at::Tensor& tensor(std::size_t group, const std::string& name) const;

  void set_schedule(const std::string& name, HyperParameters::Curve curve);
  void clear_schedule(const std::string& name);
  // The number was set against its curve, or a curve to come, and keeps its value for the next step.
  void keep(std::size_t group, const std::string& name);
  bool kept(std::size_t group, const std::string& name) const;
  bool has_schedules() const { return !curves_.empty(); }
  bool has_schedules_besides(const std::string& name) const { return curves_.size() > curves_.count(name); }
  bool is_scheduled(const std::string& name) const { return curves_.count(name) != 0; }

  // Host side before a step: fills the table if it is used up. `applied()` may read the device. `counted`: advance()
  // will be told a number that includes the step. A ConfigError of a curve is thrown before the step that needs the
  // value.
  void begin(const std::function<int64_t()>& applied, bool counted = false);
  // In the step: what follows a curve gets its value for `applied` (int64, one element).
  void advance(const at::Tensor& applied);
  // Host side after a step.
  void end();
  // The number of applied steps has jumped: the next begin() fills the table anew.
  void refill() {
    rows_left_ = 0;
    read_.reset();
  }

  // What advance() changes.
  const at::Tensor& values() const { return values_; }

 private:
  std::size_t position(std::size_t group, const std::string& name) const;
  double read(std::size_t position) const;
  void fill(int64_t applied, bool counted);
  void fill_row(int64_t applied, double* cells) const;
  void hold(std::size_t position, bool on);

  std::vector<std::map<std::string, std::size_t>> index_;  // per group: name to position in values_
  std::vector<double> host_;                               // what was set last
  std::vector<double> at_begin_;                           // the same when the step began
  std::vector<at::Tensor> scalars_;                        // views of values_
  at::Tensor values_;                                      // one element per number
  mutable at::Tensor read_;  // what they were found to be since the last step, on the host
  std::map<std::string, HyperParameters::Curve> curves_;
  at::Tensor table_;                              // [kRows, numbers]: values at base_, base_ + 1, ... applied steps
  at::Tensor base_;                               // int64 [1]
  at::Tensor held_;                               // bool per number: advance() leaves it alone
  std::map<std::size_t, std::string> set_since_;  // by position: the numbers that were set for the next step
  int64_t rows_left_ = 0;
};

}  // namespace duet
