#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "core/hook.h"
#include "optim/schedules/detail/schedule_rules.h"

namespace duet {

// By default less is better, as in mmengine and PyTorch. An accuracy that rises would be taken for a plateau.
bool lacks_rule(const ReduceOnPlateau& options);

// Lets numbers of the optimizer (learning rate, momentum, ...) follow schedules over the whole run. The values that the
// groups have when training first starts are the initial ones; a checkpoint keeps them, so a resume follows the same
// curve. A step that is skipped does not advance it. Numbers without a schedule are left alone. A trainer has one for
// TrainerOptions::schedules.
class ParamSchedulerHook : public Hook {
 public:
  // Throws ConfigError for a schedule that is wrong by itself; before_train for one that fits neither the run nor the
  // optimizer. before_train warns once of each interval that schedules leave out.
  explicit ParamSchedulerHook(std::vector<Schedule> schedules);

  std::string name() const override { return "param_scheduler"; }
  int priority() const override { return kLow; }

  void before_train(TrainContext& context) override;
  // Data that were left out (a rollback, batches of weight 0) have made the run shorter: a resumed run knows no other.
  void before_train_iter(TrainContext& context) override;
  // ReduceOnPlateau. Throws ConfigError if the validation has not the metric that one monitors.
  void after_val_epoch(TrainContext& context) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  using ByGroup = std::vector<double>;

  // A ReduceOnPlateau, and what it has multiplied each number by.
  struct Plateau {
    std::size_t schedule;  // its place in the list
    PlateauWatch watch;
    std::map<std::string, ByGroup> reductions;
  };

  void remember_initial(const HyperParameters& numbers);
  void warn_of_gaps();
  void draw_curves(HyperParameters& numbers);
  bool governs(const Schedule& schedule, int64_t step) const;
  void reduce(Plateau& plateau, const HyperParameters& numbers);
  ByGroup reductions_of(const std::string& number, std::size_t group) const;
  void follow(HyperParameters& numbers) const;

  std::vector<Schedule> schedules_;
  std::vector<Plateau> plateaus_;
  std::map<std::string, ByGroup> initial_;       // by number; empty until training starts
  std::map<std::string, std::string> params_;    // by number: the param_name that drives it
  std::map<std::string, ScheduleCurve> curves_;  // by number
  ScheduleRun run_;
  bool warned_ = false;
};

}  // namespace duet
