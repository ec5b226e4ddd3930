#pragma once

#include <duet/cli/config.h>

#include <functional>
#include <memory>
#include <string>

namespace duet {

class Dataset;
class Task;

// What a model may ask for while it is built.
struct ModelContext {
  const Dataset* train_data = nullptr;  // null if the config has no data.train
};

// A factory reads its options from the node under `model` or `data.*`; keys that it does not read are errors.
using ModelFactory = std::function<std::unique_ptr<Task>(ConfigNode&, ModelContext&)>;
using DatasetFactory = std::function<std::shared_ptr<const Dataset>(ConfigNode&)>;

// Make `type: <name>` known to the program. Call them before run_cli(). Throw ConfigError if the name is taken.
void register_model(const std::string& name, ModelFactory factory);
void register_dataset(const std::string& name, DatasetFactory factory);

// SmallCnn, Mlp, Gpt, torchscript; FashionMnist, Text, Safetensors. Does nothing the second time; run_cli() calls it.
void register_builtin_types();

// Build what the node's `type` says. Throw ConfigError for an unknown type (known names, nearest one) and unknown keys.
std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context);
std::shared_ptr<const Dataset> make_dataset(ConfigNode node);

}  // namespace duet
