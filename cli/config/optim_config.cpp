#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "optim/groups/detail/param_group_builder.h"
#include "optim/groups/param_group.h"

namespace duet {

namespace {

std::optional<ClipGrad> read_clip_grad(const ConfigNode& node) {
  if (!node.is_set()) return std::nullopt;
  const std::string type =
      node.read_choice("type", node.child("clip_value").exists() ? "value" : "norm", {"norm", "value", "adaptive"});
  if (type == "value") return read_options<ClipValue>(node);
  if (type == "adaptive") return read_options<ClipAdaptive>(node);
  return read_options<ClipNorm>(node);
}

std::optional<at::ScalarType> amp_type(const ConfigNode& node, const char* key, const std::string& name) {
  if (name == "bf16" || name == "bfloat16") return at::kBFloat16;
  if (name == "fp16" || name == "float16") return at::kHalf;
  if (name == "off" || name == "false" || name == "no") return std::nullopt;
  node.fail_value(key, "off, bf16 or fp16");
}

// mmengine's AmpOptimWrapper is `amp` under another name: float16 unless its `dtype` says otherwise.
std::optional<at::ScalarType> read_amp(const ConfigNode& node) {
  const std::string type = node.read<std::string>("type", "OptimWrapper");
  if (type != "OptimWrapper" && type != "AmpOptimWrapper") {
    node.fail_value("type", "OptimWrapper or AmpOptimWrapper; an optimizer stands one level below: optimizer: {type: " +
                                type + "}");
  }
  if (type == "OptimWrapper") {
    const std::string name = node.read<std::string>("amp", "off");
    return amp_type(node, "amp", name);
  }
  if (node.has("amp")) {
    node.fail("type",
              "is AmpOptimWrapper beside amp, expected one of the two; remove amp and name the precision as dtype, or "
              "remove type");
  }
  const std::string name = node.read<std::string>("dtype", "float16");
  const auto dtype = amp_type(node, "dtype", name);
  if (!dtype) node.fail("dtype", "is off, expected float16 or bfloat16 for an AmpOptimWrapper; use type: OptimWrapper");
  return dtype;
}

// "dynamic" says what float16 does anyway and nothing to the others; a number or a map asks for scaling in any
// precision.
std::optional<LossScaleOptions> read_loss_scale(const ConfigNode& node, std::optional<at::ScalarType> amp) {
  const ConfigNode scale = node.child("loss_scale");
  if (scale.kind() == ConfigNode::Kind::kMap) return read_all_options<LossScaleOptions>(scale);
  const bool by_default = amp == at::kHalf;
  const std::string text = node.read<std::string>("loss_scale", "dynamic");
  if (text == "dynamic") return by_default ? std::optional<LossScaleOptions>(LossScaleOptions{}) : std::nullopt;
  if (!parse_number<double>(text)) node.fail_value("loss_scale", "dynamic, a number above 0, or a map");
  LossScaleOptions options;
  options.dynamic = false;
  options.init_scale = node.read_number("loss_scale", 0, above(0));
  node.located([&] { check_options(options); });
  return options;
}

std::optional<double> read_multiplier(const ConfigNode& node, const std::string& key) {
  if (!node.find<double>(key)) return std::nullopt;
  return node.read_number(key, 0, at_least(0));
}

// Besides the two multipliers any number of the optimizer, as it is to be.
CustomKey read_custom_key(const ConfigNode& node) {
  CustomKey custom;
  custom.lr_mult = read_multiplier(node, "lr_mult").value_or(custom.lr_mult);
  custom.decay_mult = read_multiplier(node, "decay_mult").value_or(custom.decay_mult);
  for (const std::string& key : node.keys()) {
    if (key == "lr_mult" || key == "decay_mult") continue;
    if (key == "betas") {
      const auto betas = node.need<std::vector<double>>(key);
      if (betas.size() != 2) node.fail(key, c10::str("has ", betas.size(), " numbers, expected two"));
      custom.numbers["beta1"] = betas[0];
      custom.numbers["beta2"] = betas[1];
    } else {
      node.need<double>(key);
      custom.numbers[key] = node.read_number(key, 0, at_least(0));
    }
  }
  return custom;
}

// A mistake that only shows on the model is reported with the place of the options.
template <class Options>
ParamGroupsFn located_at(const ConfigNode& node, const Options& options,
                         ParamGroups (*make)(const ModelInfo&, const OptimizerOptions&, const Options&)) {
  return [node, options, make](const ModelInfo& model, const OptimizerOptions& optimizer) {
    ParamGroups groups;
    node.located([&] { groups = make(model, optimizer, options); });
    return groups;
  };
}

}  // namespace

ParamGroupsFn paramwise_constructor(const ConfigNode& node) {
  if (node.is_empty()) return {};
  auto options = read_options<ParamwiseOptions>(node);
  const ConfigNode custom_keys = node.child("custom_keys");
  for (const std::string& key : custom_keys.keys()) options.custom_keys[key] = read_custom_key(custom_keys.child(key));
  node.located([&] { check_options(options); });
  return located_at(node, options, paramwise_groups);
}

ParamGroupsFn layer_decay_constructor(const ConfigNode& node) {
  const auto options = read_options<LayerDecayOptions>(node);
  node.located([&] { check_options(options); });
  return located_at(node, options, layer_decay_groups);
}

const OptionFields& optim_wrapper_fields() {
  using O = TrainerOptions;
  return described<O>("TrainerOptions", [](const auto& add) {
    add.key("type", "OptimWrapper, AmpOptimWrapper", "AmpOptimWrapper: amp under mmengine's name", "OptimWrapper");
    add.key("amp", "off, bf16, fp16", "precision of the forward pass", "off");
    add("amp_eval", &O::amp_eval, "evaluation and prediction run in that precision, too");
    add.key("dtype", "float16, bfloat16", "precision of an AmpOptimWrapper", "float16");
    add.key("loss_scale", "dynamic or number", "scale of the loss in float16; a map: how it moves", "dynamic");
    add("log_grad_norm", &O::log_grad_norm, "logs the norm of the gradients without clipping by it, too");
    add("non_finite", &O::non_finite, "what a step with inf or NaN does", {"apply", "skip", "raise"});
    add.key("constructor", join(registered("constructor")), "puts parameters into groups",
            "DefaultOptimWrapperConstructor");
  });
}

void read_optim_wrapper(const ConfigNode& node, TrainerOptions& options) {
  read_fields(node, optim_wrapper_fields(), &options);
  options.amp = read_amp(node);
  options.optimizer = make_optimizer(node.child("optimizer"));
  if (node.child("clip_grad").kind() == ConfigNode::Kind::kValue)
    node.fail_value("clip_grad", "a map of 'key: value', such as {max_norm: 1.0}");
  options.clip_grad = read_clip_grad(node.child("clip_grad"));
  options.loss_scale = read_loss_scale(node, options.amp);
  options.param_groups = make_param_groups(node);
  node.located([&] { options.validate(); });
}

void fit_batch_size(const ConfigNode& root, int64_t world_size, RunConfig& config) {
  const ConfigNode trainer = root.child("trainer"), train = root.child("data").child("train");
  if (!config.train || !trainer.find<int64_t>("global_batch_size")) return;
  const int64_t global = trainer.read_int("global_batch_size", 0, 1);
  int64_t &batch_size = config.train->loader.batch_size, &accumulate = config.trainer.loop.accumulate;
  const bool has_size = train.child("batch_size").is_set(), has_accumulate = trainer.child("accumulate").is_set();
  const double given = static_cast<double>(world_size) * static_cast<double>(has_size ? batch_size : 1) *
                       static_cast<double>(has_accumulate ? accumulate : 1);
  const double rest = static_cast<double>(global) / given;
  const bool has_all = has_size && has_accumulate;
  if (has_all ? rest != 1 : rest != std::floor(rest)) {
    trainer.fail("global_batch_size",
                 c10::str("is ", global, ", expected ", has_all ? "" : "a multiple of ", given, " = ", world_size,
                          world_size == 1 ? " process" : " processes",
                          " times the batch_size and accumulate that are given; change one of them"));
  }
  if (has_all) return;
  (has_size ? accumulate : batch_size) = static_cast<int64_t>(rest);
  // Saved, the default would be taken for one that is given; another number of processes computes it anew.
  has_size ? trainer.note_default("accumulate", {}) : train.note_default("batch_size", {});
}

void scale_learning_rates(const ConfigNode& root, int64_t batch_size, TrainerOptions& trainer) {
  const ConfigNode node = root.child("auto_scale_lr");
  if (!node.is_set()) return;
  const bool is_enabled = node.read<bool>("enable", false);
  const auto base = node.need<int64_t>("base_batch_size");
  if (base < 1) node.fail_value("base_batch_size", "at least 1");
  if (!is_enabled) return;
  const double ratio = static_cast<double>(batch_size) / static_cast<double>(base);
  log_info(c10::str("auto_scale_lr: learning rates times ", ratio, ": a step has ", batch_size,
                    " samples, base_batch_size is ", base));
  if (trainer.param_groups) {  // whose own rates may be numbers that do not follow the optimizer's
    trainer.param_groups = [make = trainer.param_groups, unscaled = trainer.optimizer, ratio](Task& task,
                                                                                              const OptimizerOptions&) {
      ParamGroups groups = make(task, unscaled);
      for (ParamGroup& group : groups) {
        if (const auto lr = group.numbers.find("lr"); lr != group.numbers.end()) lr->second *= ratio;
      }
      return groups;
    };
  }
  const double lr = base_numbers(trainer.optimizer).at("lr") * ratio;
  node.located([&] { trainer.optimizer.set("lr", lr); });
}

}  // namespace duet
