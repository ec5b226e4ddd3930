#include <duet/cli/optim_config.h>

#include <c10/util/StringUtil.h>
#include <duet/cli/nearest.h>
#include <duet/core/error.h>

#include <limits>
#include <map>
#include <string>

namespace duet {

namespace {

constexpr double kHuge = std::numeric_limits<double>::max();
// More updates or epochs than any run has: products of two of these stay within int64.
constexpr int64_t kLongest = int64_t{1} << 31;

OptimizerOptions read_optimizer(const ConfigNode& node) {
  OptimizerOptions options;
  options.type = node.read_choice("type", options.type, {"SGD", "Adam", "AdamW"});
  options.lr = node.read_number("lr", options.lr, 0, kHuge);
  options.weight_decay = node.read_number("weight_decay", options.type == "AdamW" ? 0.01 : 0.0, 0, kHuge);
  options.maximize = node.read<bool>("maximize", options.maximize);
  if (options.type == "SGD") {
    options.momentum = node.read_number("momentum", options.momentum, 0, kHuge);
    options.dampening = node.read_number("dampening", options.dampening, 0, kHuge);
    options.nesterov = node.read<bool>("nesterov", options.nesterov);
  } else {
    const auto betas = node.read<std::vector<double>>("betas", {options.betas[0], options.betas[1]});
    if (betas.size() != 2) node.fail("betas", c10::str("has ", betas.size(), " numbers, expected two"));
    options.betas = {betas[0], betas[1]};
    options.eps = node.read_number("eps", options.eps, 0, kHuge);
    options.amsgrad = node.read<bool>("amsgrad", options.amsgrad);
  }
  node.located([&] { options.validate(); });
  return options;
}

std::optional<ClipGradOptions> read_clip_grad(const ConfigNode& node) {
  if (!node.exists() || node.is_null()) return std::nullopt;
  ClipGradOptions options;
  node.read_choice("type", "norm", {"norm"});
  options.max_norm = node.read_number("max_norm", options.max_norm, std::numeric_limits<double>::min(), kHuge);
  options.norm_type = node.read_number("norm_type", options.norm_type, 1);
  return options;
}

std::optional<at::ScalarType> read_amp(const ConfigNode& node) {
  const std::string amp = node.read<std::string>("amp", "off");
  if (amp == "bf16" || amp == "bfloat16") return at::kBFloat16;
  if (amp == "fp16" || amp == "float16") {
    node.fail("amp",
              "is '" + amp + "', which needs a loss scaler and is not available in this version; use bf16 or off");
  }
  if (amp != "off" && amp != "false" && amp != "no") node.fail("amp", "is '" + amp + "', expected off or bf16");
  return std::nullopt;
}

// Keys that only matter to features of later versions: what changes nothing is accepted, the rest is refused.
void refuse_unavailable(const ConfigNode& node) {
  const std::string scale = node.find<std::string>("loss_scale").value_or("dynamic");
  if (scale != "dynamic" && scale != "1" && scale != "1.0") {
    node.fail("loss_scale", "is '" + scale +
                                "', but scaling serves fp16 alone, which is not available in this version; "
                                "remove the key");
  }
  if (!node.child("paramwise_cfg").is_empty()) {
    node.fail("paramwise_cfg", "is set, but parameter groups are not available in this version; remove it or set null");
  }
  const std::string constructor = node.find<std::string>("constructor").value_or("DefaultOptimWrapperConstructor");
  if (constructor != "DefaultOptimWrapperConstructor") {
    node.fail("constructor", "is '" + constructor +
                                 "', expected DefaultOptimWrapperConstructor: others are not available "
                                 "in this version");
  }
  const std::string type = node.find<std::string>("type").value_or("OptimWrapper");
  if (type != "OptimWrapper") {
    node.fail("type", "is '" + type + "', expected OptimWrapper; for mixed precision set amp: bf16");
  }
}

// Default factors of a type: torch's for torch's names.
struct TypeName {
  std::string type;
  double factor, start_factor;
};

TypeName type_of(const ConfigNode& node) {
  static const std::map<std::string, TypeName> kTypes = {
      {"Constant", {"Constant", 1.0, 0}},      {"ConstantLR", {"Constant", 1.0 / 3, 0}},
      {"Linear", {"Linear", 0, 0.001}},        {"LinearLR", {"Linear", 0, 1.0 / 3}},
      {"Step", {"Step", 0, 0}},                {"StepLR", {"Step", 0, 0}},
      {"MultiStep", {"MultiStep", 0, 0}},      {"MultiStepLR", {"MultiStep", 0, 0}},
      {"Cosine", {"Cosine", 0, 0}},            {"CosineAnnealingLR", {"Cosine", 0, 0}},
      {"Polynomial", {"Polynomial", 0, 0}},    {"PolyLR", {"Polynomial", 0, 0}}};
  const std::string type = node.need<std::string>("type");
  const auto found = kTypes.find(type);
  if (found != kTypes.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& entry : kTypes) names.push_back(entry.first);
  node.fail("type", c10::str("is '", type, "', expected a schedule; ", known_and_nearest(type, names)));
}

void read_shape(const ConfigNode& node, const TypeName& name, ScheduleOptions& options) {
  if (options.type == "Constant") options.factor = node.read_number("factor", name.factor, 0, kHuge);
  if (options.type == "Linear") {
    options.start_factor = node.read_number("start_factor", name.start_factor, 0, kHuge);
    options.end_factor = node.read_number("end_factor", options.end_factor, 0, kHuge);
  }
  if (options.type == "Step") {
    node.need<int64_t>("step_size");
    options.step_size = node.read_int("step_size", 1, 1, kLongest);
  }
  if (options.type == "MultiStep") {
    options.milestones = node.need<std::vector<int64_t>>("milestones");
    for (const int64_t mark : options.milestones) {
      if (mark > kLongest) node.fail("milestones", c10::str("holds ", mark, ", expected at most ", kLongest));
    }
  }
  if (options.type == "Step" || options.type == "MultiStep") {
    options.gamma = node.read_number("gamma", options.gamma, 0, kHuge);
  }
  if (options.type == "Cosine" || options.type == "Polynomial") {
    options.eta_min = node.read_number("eta_min", options.eta_min, 0, kHuge);
  }
  if (options.type == "Polynomial") options.power = node.read_number("power", options.power, 0, kHuge);
}

ScheduleConfig read_schedule(const ConfigNode& node) {
  ScheduleConfig schedule;
  schedule.node = node;
  ScheduleOptions& options = schedule.options;
  const TypeName name = type_of(node);
  options.type = name.type;
  options.begin = node.read_int("begin", options.begin, 0, kLongest);
  options.end = node.read_int("end", options.end, -1, kLongest);
  schedule.by_epoch = node.read<bool>("by_epoch", false);
  read_shape(node, name, options);
  const bool steps = options.type == "Step" || options.type == "MultiStep" || options.type == "Constant";
  if (!node.find<bool>("convert_to_iter_based").value_or(true) && schedule.by_epoch && !steps) {
    node.fail("convert_to_iter_based", "is false, but a rate that only changes between epochs is not available in this "
                                       "version; remove the key, or use Step or MultiStep");
  }
  const std::optional<int64_t> t_max = node.find<int64_t>("T_max");
  if (t_max && (options.type != "Cosine" || options.end - options.begin != *t_max)) {
    node.fail("T_max", c10::str("is ", *t_max, ", but a schedule runs from begin to end here; set end: ",
                                options.begin + *t_max, " and remove T_max"));
  }
  node.located([&] { options.validate(); });
  return schedule;
}

}  // namespace

void read_optim_wrapper(const ConfigNode& node, TrainerOptions& options) {
  refuse_unavailable(node);
  options.optimizer = read_optimizer(node.child("optimizer"));
  options.clip_grad = read_clip_grad(node.child("clip_grad"));
  options.amp = read_amp(node);
}

std::vector<ScheduleConfig> read_schedules(const ConfigNode& root) {
  std::vector<ScheduleConfig> schedules;
  for (const ConfigNode& node : root.one_or_list("param_scheduler")) schedules.push_back(read_schedule(node));
  return schedules;
}

std::vector<ScheduleOptions> resolve_schedules(const std::vector<ScheduleConfig>& schedules,
                                               int64_t updates_per_epoch) {
  std::vector<ScheduleOptions> resolved;
  for (const ScheduleConfig& schedule : schedules) {
    ScheduleOptions options = schedule.options;
    if (schedule.by_epoch) {
      if (updates_per_epoch <= 0) {
        schedule.node.fail("by_epoch", "is true, but the data has no epochs; count in updates with by_epoch: false");
      }
      options.begin *= updates_per_epoch;
      if (options.end > 0) options.end *= updates_per_epoch;
      options.step_size *= updates_per_epoch;
      for (int64_t& milestone : options.milestones) milestone *= updates_per_epoch;
    }
    resolved.push_back(options);
  }
  return resolved;
}

}  // namespace duet
