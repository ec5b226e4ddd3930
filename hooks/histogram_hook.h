#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

struct HistogramHookOptions {
  int64_t interval = 500;                  // steps from one to the next; each waits for the device
  std::vector<std::string> patterns = {};  // names of parameters or modules, * stands for any text; empty: all
  bool weights = true;
  bool gradients = true;
  int64_t bins = 30;

  static const OptionFields& fields();
};

// Of the finite values of a tensor in `bins` bins as numpy.histogram chooses them; of a sparse one the values that it
// holds, of a complex one its real and imaginary parts. Nothing if there is none. Waits for the tensor's device.
std::optional<Histogram> histogram_of(const at::Tensor& tensor, int64_t bins);

// Logs how the values of parameters and gradients are spread, as "weights/<parameter>" and "gradients/<parameter>":
// LoggerHook writes them as JSON lines of kind "histogram", which `duet report` draws, and to TensorBoard and W&B.
// Bins are of one width, from the smallest value to the largest; what is not finite is left out. Weights are those
// after the step, gradients those that the optimizer was given: of all ranks, clipped, without the loss scale of
// float16. Between its steps it does nothing. Rank 0 logs for all.
class HistogramHook : public Hook {
 public:
  explicit HistogramHook(HistogramHookOptions options = {});

  std::string name() const override { return "histogram"; }

  // Throws ConfigError for a pattern that fits no parameter.
  void before_train(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;

 private:
  HistogramHookOptions options_;
};

}  // namespace duet
