#pragma once

#include <map>
#include <string>
#include <vector>
#include "optim/detail/device_hyper_parameters.h"
#include "optim/optimizers/detail/optimizer.h"

namespace duet {

// What optimizers do with the numbers of their groups: read and set them within their ranges, let them follow
// schedules, and keep them in a checkpoint as param_groups.GROUP.NAME, with the value that each was made with
// (configured) and whether it was set against its curve (kept).
class NumberedOptimizer : public Optimizer {
 public:
  NumberedOptimizer(const OptimizerOptions& options, const std::vector<std::map<std::string, double>>& numbers,
                    at::Device device)
      : options_(options), configured_(numbers), numbers_(numbers, device) {}

  std::size_t group_count() const override { return numbers_.group_count(); }
  std::vector<std::string> names() const override { return numbers_.names(); }
  bool has(std::size_t group, const std::string& name) const override { return numbers_.has(group, name); }
  double get(std::size_t group, const std::string& name) const override { return numbers_.get(group, name); }
  void set(std::size_t group, const std::string& name, double value) override;
  void set_schedule(const std::string& name, Curve curve) override;
  void clear_schedule(const std::string& name) override { numbers_.clear_schedule(name); }

 protected:
  // Throws ConfigError for a number that is not there, or a value that it cannot have.
  virtual void check_number(std::size_t group, const std::string& name, double value) const;

  // Calls `use(group, name, value that it was made with)`.
  template <class Use>
  void for_each_number(const Use& use) const {
    for (std::size_t group = 0; group < group_count(); ++group) {
      for (const auto& [name, value] : configured_[group]) use(group, name, value);
    }
  }
  // "param_groups.0.lr"
  static std::string number_key(const char* what, std::size_t group, const std::string& name);
  void save_numbers(StateDict& state) const;
  // Warns of those that this run was configured with otherwise: the state's are used.
  void load_numbers(const StateDict& state);

  OptimizerOptions options_;
  std::vector<std::map<std::string, double>> configured_;  // per group
  DeviceHyperParameters numbers_;
};

}  // namespace duet
