#include "graph/explain/obstacle_log.h"
#include <algorithm>
#include "graph/explain/code_place.h"
#include "graph/record/obstacle.h"

namespace duet {

void ObstacleLog::on_obstacle(const std::string& op, const Obstacle& obstacle, const std::string& where) {
  StepExplanation::Obstacle entry{op, obstacle.what, where, place_in_user_code(), obstacle.way_out, 1};
  const auto same = std::find_if(found_.begin(), found_.end(), [&](const StepExplanation::Obstacle& other) {
    return other.what == entry.what && other.where == entry.where && other.source == entry.source;
  });
  if (same != found_.end()) {
    ++same->times;
  } else {
    found_.push_back(std::move(entry));
  }
}

}  // namespace duet
