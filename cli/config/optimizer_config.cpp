#include "cli/config/config_options.h"
#include "cli/config/optim_config.h"
#include "cli/optim_registry.h"

namespace duet {

OptimizerOptions read_optimizer(const ConfigNode& node) {
  std::vector<std::string> types = OptimizerOptions::built_in_types();
  for (const std::string& name : registered_optimizers()) types.push_back(name);
  const std::string type = node.read_choice("type", "AdamW", types);
  std::optional<OptimizerKind> own = make_optimizer_kind(node, type);
  OptimizerOptions options =
      own ? OptimizerOptions(std::make_shared<const OptimizerKind>(std::move(*own))) : OptimizerOptions::of_type(type);
  if (options.own_kind() == nullptr) read_fields(node, options.fields(), options.mutable_data());
  node.located([&] { options.validate(); });
  return options;
}

}  // namespace duet
