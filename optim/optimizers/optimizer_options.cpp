#include "optim/optimizers/optimizer_options.h"
#include <limits>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "optim/optimizers/optimizer_kind.h"

namespace duet {

namespace {

// Those that T has, each under one name and with one range.
template <class T>
void add_fields(const FieldAdder<T>& add) {
  add("lr", &T::lr, "learning rate").in(at_least(0));
  if constexpr (requires { &T::weight_decay; })
    add("weight_decay", &T::weight_decay, "share of a weight taken off per lr").in(at_least(0));
  if constexpr (requires { &T::momentum; })
    add("momentum", &T::momentum, "share of the last step that is kept").in(at_least(0));
  if constexpr (requires { &T::betas; })
    add("betas", &T::betas, "shares kept of the averages of the gradient and of its square").in(up_to_below(0, 1));
  if constexpr (requires { &T::eps; }) add("eps", &T::eps, "added to the denominator").in(at_least(0));
  if constexpr (requires { &T::maximize; }) add("maximize", &T::maximize, "climbs instead of descends");
  if constexpr (requires { &T::amsgrad; }) add("amsgrad", &T::amsgrad, "divides by the largest average so far");
  if constexpr (requires { &T::decoupled_weight_decay; })
    add("decoupled_weight_decay", &T::decoupled_weight_decay, "decays weights as AdamW does, not through the gradient");
  if constexpr (requires { &T::dampening; })
    add("dampening", &T::dampening, "share of the gradient that momentum leaves out").in(between(0, 1));
  if constexpr (requires { &T::nesterov; }) add("nesterov", &T::nesterov, "looks ahead along the momentum");
  if constexpr (requires { &T::lr_decay; })
    add("lr_decay", &T::lr_decay, "lr falls as 1 / (1 + steps * lr_decay)").in(at_least(0));
  if constexpr (requires { &T::initial_accumulator_value; })
    add("initial_accumulator_value", &T::initial_accumulator_value, "start of the sums of squares").in(at_least(0));
  if constexpr (requires { &T::centered; }) {
    add("alpha", &T::alpha, "share kept of the average of squares").in(up_to_below(0, 1));
    add("centered", &T::centered, "divides by the standard deviation of the gradient");
  }
  if constexpr (requires { &T::momentum_decay; })
    add("momentum_decay", &T::momentum_decay, "how fast momentum nears beta1").in(at_least(0));
  if constexpr (requires { &T::rho; }) add("rho", &T::rho, "share kept of the averages of squares").in(between(0, 1));
}

void check_nesterov(const SGD& o) {
  if (!o.nesterov || (o.momentum > 0 && o.dampening == 0)) return;
  throw ConfigError(
      "[SGD] nesterov is true, expected momentum > 0 and dampening = 0 beside it; set them, or leave nesterov out");
}

void check_etas(const Rprop& o) {
  if (!(o.etas[0] > 0 && o.etas[0] < 1 && o.etas[1] > 1)) {
    throw ConfigError(
        c10::str("[Rprop] etas is [", o.etas[0], ", ", o.etas[1],
                 "], expected a factor in (0, 1) that shrinks a step size, then one > 1 that lets it grow"));
  }
  require<ConfigError>(o.step_sizes[0] <= o.step_sizes[1],
                       c10::str("[Rprop] step_sizes is [", o.step_sizes[0], ", ", o.step_sizes[1],
                                "], expected the least, then the largest"));
}

void check_own(const OptimizerKind& kind, const OptimizerOptions& options) {
  if (kind.name.empty() || !kind.slots || !kind.numbers || !kind.kernel) {
    throw ConfigError("[OptimizerOptions] found the kind '" + kind.name +
                      "', expected one with name, slots, numbers and kernel");
  }
  if (kind.numbers(options).count("lr") != 0) return;
  throw ConfigError("[OptimizerOptions] kind '" + kind.name +
                    "' has no number lr, expected its start value among its numbers");
}

const OptionFields& no_fields() {
  static const OptionFields kFields;
  return kFields;
}

template <class... Types>
std::vector<OptimizerOptions> all_of() {
  return {OptimizerOptions(Types{})...};
}

const std::vector<OptimizerOptions>& built_in_optimizers() {
  static const std::vector<OptimizerOptions> kAll =
      all_of<SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Lion, Muon, Adadelta, Adafactor, Adamax, ASGD, Rprop,
             SparseAdam, LBFGS>();
  return kAll;
}

}  // namespace

const OptionFields& SGD::fields() {
  return described<SGD>("SGD", [](const auto& add) {
    add_fields(add);
    add.rule(check_nesterov);
  });
}

const OptionFields& Adam::fields() { return described<Adam>("Adam", add_fields<Adam>); }
const OptionFields& AdamW::fields() { return described<AdamW>("AdamW", add_fields<AdamW>); }
const OptionFields& Adagrad::fields() { return described<Adagrad>("Adagrad", add_fields<Adagrad>); }
const OptionFields& RMSprop::fields() { return described<RMSprop>("RMSprop", add_fields<RMSprop>); }
const OptionFields& NAdam::fields() { return described<NAdam>("NAdam", add_fields<NAdam>); }
const OptionFields& RAdam::fields() { return described<RAdam>("RAdam", add_fields<RAdam>); }
const OptionFields& Lion::fields() { return described<Lion>("Lion", add_fields<Lion>); }
const OptionFields& Adadelta::fields() { return described<Adadelta>("Adadelta", add_fields<Adadelta>); }
const OptionFields& Adamax::fields() { return described<Adamax>("Adamax", add_fields<Adamax>); }
const OptionFields& SparseAdam::fields() { return described<SparseAdam>("SparseAdam", add_fields<SparseAdam>); }

const OptionFields& ASGD::fields() {
  return described<ASGD>("ASGD", [](const auto& add) {
    add_fields(add);
    add("lambd", &ASGD::lambd, "share of a weight taken off per rate, and how fast the rate falls").in(at_least(0));
    add("alpha", &ASGD::alpha, "the rate falls as lr / (1 + lambd * lr * steps)^alpha").in(at_least(0));
    add("t0", &ASGD::t0, "steps after which weights are averaged (state: ax)").in(at_least(0));
  });
}

const OptionFields& Rprop::fields() {
  return described<Rprop>("Rprop", [](const auto& add) {
    add_fields(add);
    add("etas", &Rprop::etas, "factors of a step size: where the gradient's sign changed, and where it did not");
    add("step_sizes", &Rprop::step_sizes, "the least and the largest step size").in(at_least(0));
    add.rule(check_etas);
  });
}

const OptionFields& Adafactor::fields() {
  return described<Adafactor>("Adafactor", [](const auto& add) {
    add_fields(add);
    add("beta2_decay", &Adafactor::beta2_decay, "the averages of squares take in steps^beta2_decay of a new square")
        .in(Range{.high = 0})
        .expects("a number <= 0");
    add("eps1", &Adafactor::eps1, "least root of an average of squares; none: the epsilon of the dtype")
        .in(at_least(0));
    add("eps2", &Adafactor::eps2, "least root mean square of a parameter that scales its steps").in(at_least(0));
    add("d", &Adafactor::d, "largest root mean square of an update").in(at_least(1));
  });
}

const OptionFields& Muon::fields() {
  return described<Muon>("Muon", [](const auto& add) {
    add_fields(add);
    add("ns_steps", &Muon::ns_steps, "Newton-Schulz iterations").in(between(1, 100));
    add("ns_coefficients", &Muon::ns_coefficients, "coefficients of the Newton-Schulz polynomial");
    add("adjust_lr_fn", &Muon::adjust_lr_fn, "how lr follows a matrix's shape").one_of({"original", "match_rms_adamw"});
  });
}

const OptionFields& LBFGS::fields() {
  return described<LBFGS>("LBFGS", [](const auto& add) {
    add_fields(add);
    add("max_iter", &LBFGS::max_iter, "iterations per step").in(at_least(1));
    add("max_eval", &LBFGS::max_eval,
        "evaluations of the loss per step, which a line search may go beyond; none: max_iter * 5 / 4")
        .in(at_least(1));
    add("tolerance_grad", &LBFGS::tolerance_grad, "largest gradient that ends a step").in(at_least(0));
    add("tolerance_change", &LBFGS::tolerance_change, "least change that goes on").in(at_least(0));
    add("history_size", &LBFGS::history_size, "corrections kept").in(at_least(1));
    add("line_search_fn", &LBFGS::line_search_fn, "how far to go along a direction").one_of({"none", "strong_wolfe"});
  });
}

OptimizerOptions::OptimizerOptions(std::shared_ptr<const OptimizerKind> own)
    : AnyOptions(no_fields()), own_(std::move(own)) {
  require<ConfigError>(own_ != nullptr,
                       "[OptimizerOptions] found no kind, expected an optimizer; make an OptimizerKind");
}

OptimizerOptions OptimizerOptions::of_type(const std::string& type) {
  for (const OptimizerOptions& options : built_in_optimizers()) {
    if (options.type() == type) return options;
  }
  throw ConfigError(c10::str("[OptimizerOptions] type is '", type, "', expected ", join(built_in_types())));
}

const std::vector<std::string>& OptimizerOptions::built_in_types() {
  static const std::vector<std::string> kTypes = [] {
    std::vector<std::string> types;
    for (const OptimizerOptions& options : built_in_optimizers()) types.push_back(options.type());
    return types;
  }();
  return kTypes;
}

const std::string& OptimizerOptions::type() const { return own_ ? own_->name : fields().name(); }

bool OptimizerOptions::flag(const std::string& name) const {
  const OptionField* field = fields().find(name);
  return field != nullptr && field->get(data()) == OptionValue(true);
}

void OptimizerOptions::validate() const {
  if (own_) return check_own(*own_, *this);
  fields().check(data());
}

void OptimizerOptions::check_number(const std::string& name, double value) const {
  static const OptionField kOther = [] {
    OptionField any;
    any.kind = OptionField::Kind::kNumber;
    return any.in(at_least(0));
  }();
  const OptionField* known = fields().find(name == "beta1" || name == "beta2" ? "betas" : name);
  const OptionField& field = known != nullptr ? *known : kOther;
  if (field.range.holds(value)) return;
  throw ConfigError(
      c10::str("[Optimizer] found ", name, " = ", value, " for ", type(), ", expected ", expected_of(field)));
}

const OptionFields& ClipNorm::fields() {
  return described<ClipNorm>("ClipNorm", [](const auto& add) {
    add("max_norm", &ClipNorm::max_norm, "largest global norm of all gradients").in(above(0));
    add("norm_type", &ClipNorm::norm_type, "which norm: the p of the p-norm").in(at_least(1).or_infinity());
  });
}

const OptionFields& ClipValue::fields() {
  return described<ClipValue>("ClipValue", [](const auto& add) {
    add("clip_value", &ClipValue::clip_value, "largest magnitude of a gradient's element").in(above(0)).needed();
  });
}

const OptionFields& ClipAdaptive::fields() {
  using O = ClipAdaptive;
  return described<O>("ClipAdaptive", [](const auto& add) {
    add("clip_factor", &O::clip_factor, "largest norm of a unit's gradient, in norms of its weights").in(above(0));
    add("eps", &O::eps, "least norm that a unit's weights count with").in(above(0));
    add("exclude", &O::exclude, "parameters and modules that are not clipped, with * for any text")
        .called("list of names")
        .one_or_list();
  });
}

const OptionFields& ClipWith::fields() {
  return described<ClipWith>("ClipWith", [](const auto& add) {
    add.rule([](const ClipWith& clip) {
      require<ConfigError>(clip.function != nullptr, "[ClipWith] function is null, expected what clips; give it one");
    });
  });
}

const OptionFields& LossScaleOptions::fields() {
  using O = LossScaleOptions;
  return described<O>("LossScaleOptions", [](const auto& add) {
    constexpr double kSmallest = std::numeric_limits<float>::denorm_min(), kLargest = std::numeric_limits<float>::max();
    add("init_scale", &O::init_scale, "scale of the loss at the start")
        .in(between(kSmallest, kLargest))
        .expects("a float32 number > 0");
    add("growth_factor", &O::growth_factor, "factor of the scale after growth_interval finite steps").in(above(1));
    add("backoff_factor", &O::backoff_factor, "factor of the scale after a step with inf or NaN").in(inside(0, 1));
    add("growth_interval", &O::growth_interval, "finite steps after which the scale grows")
        .in(between(1, INT32_MAX))
        .expects("an integer >= 1");
  });
}

}  // namespace duet
