#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "distributed/communicator.h"
#include "optim/groups/param_group.h"
#include "optim/hyper_parameters.h"
#include "optim/schedules/schedule.h"

namespace duet {

struct TrainStepOptions;

// Throws ConfigError on all ranks if their schedules differ.
void check_same_schedules(Communicator& ranks, const std::vector<Schedule>& schedules);

// That the ranks' steps are those of the same trainer with the same options and numbers. With others the ranks' models
// would drift apart silently, and buckets of other sizes would end the processes within Gloo.
class SameSettings {
 public:
  // Throws ConfigError on all ranks if they differ.
  SameSettings(std::shared_ptr<Communicator> ranks, const TrainStepOptions& options, const ParamGroups& groups,
               const HyperParameters& numbers);

  // A hook has set a number, lets one follow a curve, or no longer so.
  void note(std::size_t group, const std::string& name, double value);
  void note(const std::string& name, const HyperParameters::Curve& curve, const HyperParameters& numbers);
  void forget(const std::string& name);
  // The same on ranks that are at the same trainer and have set the same numbers.
  uint64_t hash() const { return hash_; }
  // The next prepare() compares with the other ranks.
  void recheck() { rechecks_ = true; }
  // Host side, before each step. Throws ConfigError on all ranks if something differs.
  void prepare(const HyperParameters& numbers);

 private:
  void agree(const std::string& options, const HyperParameters& numbers);

  std::shared_ptr<Communicator> ranks_;
  int64_t trainer_;                                            // how many others rank 0 had made before
  std::map<std::pair<std::size_t, std::string>, double> set_;  // numbers that follow no curve
  std::map<std::string, std::string> curves_;                  // name -> some of its values
  uint64_t hash_ = 0;
  bool rechecks_ = false;
};

}  // namespace duet
