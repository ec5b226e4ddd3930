#pragma once

#include <string>
#include <vector>
#include "core/trainer.h"
#include "graph/record/program_writer.h"

namespace duet {

// Collects what keeps a step from being captured, each place once, with the user's code that it comes from.
class ObstacleLog : public ObstacleListener {
 public:
  void on_obstacle(const std::string& op, const Obstacle& obstacle, const std::string& where) override;
  const std::vector<StepExplanation::Obstacle>& found() const { return found_; }

 private:
  std::vector<StepExplanation::Obstacle> found_;
};

}  // namespace duet
