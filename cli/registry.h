#pragma once

#include <duet/cli/config.h>

#include <functional>
#include <memory>
#include <string>

namespace duet {

class Dataset;
class Hook;
class HookList;
class Task;

// What a model may ask for while it is built.
struct ModelContext {
  const Dataset* train_data = nullptr;  // null if the config has no data.train
};

// What a hook may ask for while it is built.
struct HookContext {
  const HookList& hooks;  // those of the run so far
};

// A factory reads its options from the node under `model`, `data.*` or `custom_hooks.*`; keys that it does not read are errors.
using ModelFactory = std::function<std::unique_ptr<Task>(ConfigNode&, ModelContext&)>;
using DatasetFactory = std::function<std::shared_ptr<const Dataset>(ConfigNode&)>;
using HookFactory = std::function<std::unique_ptr<Hook>(ConfigNode&, HookContext&)>;

// Make `type: <name>` known to the program. Call them before run_cli(). Throw ConfigError if the name is taken.
void register_model(const std::string& name, ModelFactory factory);
void register_dataset(const std::string& name, DatasetFactory factory);
void register_hook(const std::string& name, HookFactory factory);

// SmallCnn, Mlp, Gpt, torchscript; FashionMnist, Text, Safetensors; EMAHook. Does nothing the second time; run_cli() calls it.
void register_builtin_types();

// Build what the node's `type` says. Throw ConfigError for an unknown type (known names, nearest one) and unknown keys.
std::unique_ptr<Task> make_model(ConfigNode node, ModelContext context);
std::shared_ptr<const Dataset> make_dataset(ConfigNode node);
std::unique_ptr<Hook> make_hook(ConfigNode node, HookContext context);

}  // namespace duet
