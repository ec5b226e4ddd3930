#pragma once

#include <cstdint>
#include "../../base/state_dict.h"
#include "schedule.h"

namespace duet {

// Watches a metric and says when it has stopped improving, as torch's ReduceLROnPlateau does. NaN is no improvement.
class PlateauWatch : public Stateful {
 public:
  explicit PlateauWatch(PlateauOptions options);

  // Takes the metric of one validation; true if the value is to be reduced now.
  bool observe(double metric);
  // What a reduction makes of `value`: itself if the difference is not worth it.
  double reduced(double value) const;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  bool improves(double metric) const;

  PlateauOptions options_;
  double best_;
  int64_t bad_ = 0;       // validations since the last improvement
  int64_t cooldown_ = 0;  // validations that will not count
};

}  // namespace duet
