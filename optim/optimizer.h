#pragma once

#include <duet/core/batch.h>
#include <duet/core/hyper_parameters.h>
#include <duet/core/state_dict.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace duet {

// Names and defaults are those of torch.optim.
struct OptimizerOptions {
  std::string type = "AdamW";          // SGD, Adam, AdamW
  double lr = 1e-3;
  std::optional<double> weight_decay{};  // default: 0.01 for AdamW, 0 for the others
  std::array<double, 2> betas = {0.9, 0.999};  // Adam, AdamW
  double eps = 1e-8;                           // Adam, AdamW
  bool amsgrad = false;                        // Adam, AdamW
  double momentum = 0;                         // SGD
  double dampening = 0;                        // SGD
  bool nesterov = false;                       // SGD
  bool maximize = false;

  // Throws ConfigError naming the field and its range.
  void validate() const;
};

// Steps parameters by ATen's fused kernels. Learning rate and step count live on the device; the other numbers are
// host arguments of those kernels, so they are part of the capture key.
class Optimizer : public HyperParameters, public Stateful {
 public:
  static std::unique_ptr<Optimizer> create(const OptimizerOptions& options, const NamedTensors& parameters);

  // One step on every parameter that has a gradient. The kernel divides gradients by `grad_scale`
  // (float32, 0-dim) if it is defined.
  virtual void step(const at::Tensor& grad_scale) = 0;
  // Host side after a step ran, eager or replayed.
  virtual void end() {}
  virtual void append_key(std::vector<int64_t>& key) const = 0;
  // Every tensor that step() changes besides the parameters.
  virtual NamedTensors mutable_state() const = 0;
};

}  // namespace duet
