#include "cli/commands/reference.h"
#include <algorithm>
#include <gtest/gtest.h>
#include "cli/catalog.h"
#include "cli/commands/commands.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"

// The reference of the docs and `duet help` say the same, and what they show as an example can be written.

namespace duet {
namespace {

std::string help(const std::string& topic) {
  Arguments arguments;
  arguments.topic = topic;
  testing::internal::CaptureStdout();
  help_command(arguments);
  return testing::internal::GetCapturedStdout();
}

std::string without_escapes(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) result += text[i];
  }
  return result;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Reference, SaysOfEveryKeyWhatHelpSays) {
  const std::string reference = without_escapes(config_reference());
  for (const ConfigKey& key : keys_of_config()) {
    EXPECT_FALSE(key.meaning.empty()) << key.path;
    EXPECT_TRUE(holds(help(key.path), key.meaning)) << key.path;
    EXPECT_TRUE(holds(reference, "| `" + key.path + "` | " + key.meaning + " |")) << key.path;
  }
  for (const TypeKind& kind : type_kinds()) {
    for (const std::string& type : kind.types) {
      EXPECT_TRUE(holds(reference, "\n## " + type + "\n")) << type;
      for (const ConfigKey& key : keys_of_type(kind, type)) {
        EXPECT_FALSE(key.meaning.empty()) << type << "." << key.path;
        EXPECT_TRUE(holds(help(type + "." + key.path), key.meaning)) << type << "." << key.path;
        EXPECT_TRUE(holds(reference, "| `" + key.path + "` | " + key.meaning + " |")) << type << "." << key.path;
      }
    }
  }
}

// What the key's own map demands beside it.
std::string beside(const std::string& path) {
  if (path.rfind("data.", 0) == 0) return path.substr(0, path.find('.', 5)) + ".type=FashionMnist";
  if (path.rfind("load_from.", 0) == 0) return "load_from.path=weights.pt";
  if (path == "optim_wrapper.clip_grad.clip_value") return "optim_wrapper.clip_grad.type=value";
  if (path == "optim_wrapper.clip_grad.type") return "optim_wrapper.clip_grad.clip_value=1";
  if (path == "optim_wrapper.dtype") return "optim_wrapper.type=AmpOptimWrapper";
  if (path == "optim_wrapper.constructor") return "optim_wrapper.paramwise_cfg={decay_rate: 0.9, num_layers: 12}";
  if (path == "default_hooks.checkpoint.save_best") return "evaluator=[{type: Accuracy}]";
  return "seed=0";
}

TEST(Reference, EveryExampleOfAConfigIsRead) {
  for (const ConfigKey& key : keys_of_config()) {
    ConfigNode root = ConfigNode::parse_text("model: {type: Mlp}\ntrainer: {max_steps: 100}\n", "c.yaml");
    // A single value and a map of the same name are two ways of writing it.
    const std::string example = key.path + "=" + example_of(key);
    try {
      root.override_with(beside(key.path));
      root.override_with(example);
      parse_run_config(root, "c");
    } catch (const std::exception& error) {
      ADD_FAILURE() << example << ": " << error.what();
    }
  }
}

TEST(Reference, EveryExampleOfATypeIsRead) {
  for (const TypeKind& kind : type_kinds()) {
    for (const std::string& type : kind.types) {
      const AnyOptions* described = options_of(kind.name, type);
      if (described == nullptr) continue;
      for (const ConfigKey& key : keys_of_type(kind, type)) {
        ConfigNode node = ConfigNode::parse_text("{}", type);
        for (const ConfigKey& other : keys_of_type(kind, type)) {
          if (other.required) node.override_with(other.path + "=" + example_of(other));
        }
        node.override_with(key.path + "=" + example_of(key));
        AnyOptions options = *described;
        try {
          read_fields(node, options.fields(), options.mutable_data());
        } catch (const std::exception& error) {
          ADD_FAILURE() << type << "." << key.path << ": " << error.what();
        }
      }
    }
  }
}

}  // namespace
}  // namespace duet
