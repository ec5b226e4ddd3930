#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace duet {

struct OptimizerKind;

// Names and defaults are those of torch.optim; an option that is left out has its optimizer's default. One that the type
// does not have must be left out.
struct OptimizerOptions {
  // SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Lion, Muon; LBFGS in EagerTrainer only
  std::string type = "AdamW";
  std::optional<double> lr{};
  std::optional<double> weight_decay{};
  std::optional<std::array<double, 2>> betas{};  // Adam, AdamW, NAdam, RAdam, Lion; Muon: of the AdamW in it
  std::optional<double> eps{};                   // all but SGD, Lion, LBFGS
  bool amsgrad = false;                          // Adam, AdamW
  std::optional<double> momentum{};              // SGD, RMSprop, Muon
  double dampening = 0;                          // SGD
  std::optional<bool> nesterov{};                // SGD, Muon
  bool maximize = false;                         // all but LBFGS
  double lr_decay = 0;                           // Adagrad
  double initial_accumulator_value = 0;          // Adagrad
  double alpha = 0.99;                           // RMSprop
  bool centered = false;                         // RMSprop
  double momentum_decay = 4e-3;                  // NAdam
  bool decoupled_weight_decay = false;           // NAdam, RAdam
  int64_t ns_steps = 5;                          // Muon
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};  // Muon
  std::string adjust_lr_fn = "original";         // Muon: original, match_rms_adamw
  int64_t max_iter = 20;                         // LBFGS: per step
  std::optional<int64_t> max_eval{};             // LBFGS: max_iter * 5 / 4
  double tolerance_grad = 1e-7;                  // LBFGS
  double tolerance_change = 1e-9;                // LBFGS
  int64_t history_size = 100;                    // LBFGS
  std::string line_search_fn = "none";           // LBFGS: none, strong_wolfe
  // An optimizer of your own. `type` is then its name, and which of the options above it has is its own affair.
  std::shared_ptr<const OptimizerKind> kind{};

  // Throws ConfigError naming the field and its range.
  void validate() const;
};

// Throws ConfigError if `value` is outside the range of the number `name` ("lr", "beta1", ...) of the optimizer `type`.
void check_optimizer_number(const std::string& type, const std::string& name, double value);

}  // namespace duet
