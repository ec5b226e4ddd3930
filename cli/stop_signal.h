#pragma once

#include <duet/core/hook.h>

#include <string>

namespace duet {

// From here on the first SIGINT or SIGTERM only asks to stop; a second one ends the process at once.
void catch_stop_signals();

// 0, or the signal that asked to stop.
int stop_signal();

// Ends training after the update during which a signal came.
class StopSignalHook : public Hook {
 public:
  static constexpr const char* kReason = "a signal asked to stop";

  std::string name() const override { return "stop_signal"; }
  void after_train_iter(TrainContext& context) override {
    if (stop_signal() != 0) context.request_stop(kReason);
  }
};

}  // namespace duet
