#include "cli/commands/reference.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include "cli/catalog.h"
#include "cli/commands/commands.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"

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
  for (const char* key : {"clip_factor", "eps", "exclude"}) {
    if (path == std::string("optim_wrapper.clip_grad.") + key) return "optim_wrapper.clip_grad.type=adaptive";
  }
  if (path == "optim_wrapper.clip_grad.type") return "optim_wrapper.clip_grad.clip_value=1";
  if (path == "auto_scale_lr.enable") return "auto_scale_lr.base_batch_size=256";
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

// `word` under the key of a field, beside what must be there.
void read_field(const AnyOptions& described, const std::string& key, const std::string& word) {
  AnyOptions options = described;
  ConfigNode node = ConfigNode::parse_text("{}", "c.yaml");
  for (const ConfigKey& other : keys_of(options.fields(), options.data())) {
    if (other.required) node.override_with(other.path + "=" + example_of(other));
  }
  node.override_with(key + "=" + word);
  read_fields(node, options.fields(), options.mutable_data());
}

std::vector<AnyOptions> all_options() {
  std::vector<AnyOptions> all = {AnyOptions(RunConfig()),        AnyOptions(DataConfig()),
                                 AnyOptions(LoopOptions()),      AnyOptions(GraphOptions()),
                                 AnyOptions(ClipNorm()),         AnyOptions(ClipValue()),
                                 AnyOptions(ClipAdaptive()),     AnyOptions(LossScaleOptions()),
                                 AnyOptions(ParamwiseOptions()), AnyOptions(LoadFromConfig())};
  for (const std::string& type : schedule_types())
    std::visit([&](const auto& options) { all.emplace_back(options); }, make_schedule(type));
  for (const TypeKind& kind : type_kinds()) {
    for (const std::string& type : kind.types) {
      if (const AnyOptions* options = options_of(kind.name, type)) all.push_back(*options);
    }
  }
  return all;
}

TEST(Reference, EveryExampleOfATypeIsRead) {
  for (const AnyOptions& options : all_options()) {
    for (const ConfigKey& key : keys_of(options.fields(), options.data())) {
      SCOPED_TRACE(options.fields().name() + "." + key.path);
      EXPECT_NO_THROW(read_field(options, key.path, example_of(key)));
    }
  }
}

// Just outside of what the field is described to take.
std::vector<std::string> words_beyond(const OptionField& field) {
  const Range& range = field.range;
  std::vector<std::string> words;
  if (!field.choices.empty()) words.emplace_back("no_such_word");
  if (std::isfinite(range.low)) words.push_back(text_of(OptionValue(range.above_low ? range.low : range.low - 1)));
  if (std::isfinite(range.high))
    words.push_back(text_of(OptionValue(range.below_high ? range.high : 2 * range.high + 1)));
  using Kind = OptionField::Kind;
  if (field.kind != Kind::kIntegers && field.kind != Kind::kNumbers && field.kind != Kind::kTexts) return words;
  for (std::string& word : words) {
    std::string list = word;
    for (std::size_t i = 1; i < field.count; ++i) list += ", " + word;
    word = "[" + list + "]";
  }
  return words;
}

TEST(Reference, WhatAKeyIsDescribedNotToTakeIsRefusedByName) {
  int refused = 0;
  for (const AnyOptions& options : all_options()) {
    for (const OptionField& field : options.fields()) {
      if (field.by_hand || !field.is_member()) continue;
      if (field.required) {
        AnyOptions nothing = options;
        const auto read = [&] {
          read_fields(ConfigNode::parse_text("{}", "c.yaml"), nothing.fields(), nothing.mutable_data());
        };
        expect_contains(config_error_of(read), {" is missing; add it"});
      }
      for (const std::string& word : words_beyond(field)) {
        SCOPED_TRACE(options.fields().name() + "." + field.key + "=" + word);
        expect_contains(config_error_of([&] { read_field(options, field.key, word); }), {"line: " + field.key, " is "});
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace duet
