#pragma once

#include <cstdint>
#include <string>
#include "base/options.h"
#include "core/hook.h"

namespace duet {

struct SwitchModeHookOptions {
  int64_t step = 0;  // the first one that runs in `mode`
  Mode mode = Mode::kGraph;

  static const OptionFields& fields();
};

// Runs the steps from one on in another mode: op by op while a model is new, captured from then on.
class SwitchModeHook : public Hook {
 public:
  // Throws ConfigError for options out of range.
  explicit SwitchModeHook(const SwitchModeHookOptions& options);

  std::string name() const override { return std::string("switch_to_") + to_string(options_.mode); }
  void before_train_iter(TrainContext& context) override;

 private:
  SwitchModeHookOptions options_;
};

}  // namespace duet
