#include <cmath>
#include <set>
#include <gtest/gtest.h>
#include "cli/catalog.h"
#include "cli/commands/commands.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"

// The reference of the docs and `duet help` say the same of every key, and what they say that it takes is what is
// taken.

namespace duet {
namespace {

// All of it as Markdown without a topic.
std::string help(const std::string& topic) {
  Arguments arguments;
  arguments.topic = topic;
  arguments.markdown = topic.empty();
  ::testing::internal::CaptureStdout();
  help_command(arguments);
  return ::testing::internal::GetCapturedStdout();
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
  const std::string reference = without_escapes(help(""));
  std::set<std::string> paths;
  for (const ConfigKey& key : keys_of_config()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.meaning.empty()) << key.path;
    EXPECT_TRUE(holds(help(key.path), key.meaning)) << key.path;
    EXPECT_TRUE(holds(reference, "| `" + key.path + "` | " + key.meaning + " |")) << key.path;
  }
  for (const TypeKind& kind : type_kinds()) {
    EXPECT_FALSE(kind.types.empty()) << kind.name;
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

bool is_list(const OptionField& field) {
  using Kind = OptionField::Kind;
  return field.kind == Kind::kIntegers || field.kind == Kind::kNumbers || field.kind == Kind::kTexts;
}

// As often as a list must hold it.
std::string repeated(const std::string& word, const OptionField& field) {
  std::string list = word;
  for (std::size_t i = 1; i < field.count; ++i) list += ", " + word;
  return is_list(field) ? "[" + list + "]" : word;
}

// A word that the field takes.
std::string good_word(const OptionField& field) {
  const Range& range = field.range;
  std::string number;
  for (const double value : {range.high, range.low, 2.0, 0.5, 1.0}) {
    if (std::isfinite(value) && range.holds(value)) number = text_of(OptionValue(value));
  }
  if (field.kind == OptionField::Kind::kBool) return "true";
  return repeated(field.choices.empty() ? number : words_of(field).front(), field);
}

// `word` under the key of a field, beside what must be there.
void read_field(const AnyOptions& described, const std::string& key, const std::string& word) {
  AnyOptions options = described;
  ConfigNode node = ConfigNode::parse_text("{}", "c.yaml");
  for (const OptionField& other : options.fields()) {
    if (other.required && other.is_member()) node.override_with(other.key + "=" + good_word(other));
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

// Just outside of what the field is described to take.
std::vector<std::string> words_beyond(const OptionField& field) {
  const Range& range = field.range;
  std::vector<std::string> words;
  if (!field.choices.empty()) words.emplace_back("no_such_word");
  if (std::isfinite(range.low)) words.push_back(text_of(OptionValue(range.above_low ? range.low : range.low - 1)));
  if (std::isfinite(range.high))
    words.push_back(text_of(OptionValue(range.below_high ? range.high : 2 * range.high + 1)));
  for (std::string& word : words) word = repeated(word, field);
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
      if (field.type != "bytes") EXPECT_NO_THROW(read_field(options, field.key, good_word(field))) << field.key;
      for (const std::string& word : words_beyond(field)) {
        SCOPED_TRACE(options.fields().name() + "." + field.key + "=" + word);
        expect_contains(config_error_of([&] { read_field(options, field.key, word); }), {"line: " + field.key, " is "});
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200);
}

TEST(Catalog, SaysWhatModelsReadAndDatasetsGive) {
  for (const TypeKind& kind : type_kinds()) {
    const std::string word = kind.name == "model" ? "reads " : kind.name == "dataset" ? "ives " : "";
    if (word.empty() && kind.name != "transform") continue;
    for (const std::string& type : kind.types) {
      const AnyOptions* options = is_built_in(kind.name, type) ? options_of(kind.name, type) : nullptr;
      if (options == nullptr) continue;
      EXPECT_FALSE(options->fields().about().empty()) << type;
      const bool is_file = type == "torchscript" || type == "exported";  // which reads what the file's forward() takes
      EXPECT_TRUE(is_file || options->fields().about().find(word) != std::string::npos) << type;
    }
  }
}

struct CatalogTestOptions {
  std::string path;
  static const OptionFields& fields() {
    static const OptionFields kFields = OptionFields::of<CatalogTestOptions>(
        "CatalogTest", [](const auto& add) { add("path", &CatalogTestOptions::path, "a file").needed(); });
    return kFields;
  }
};

TEST(Catalog, ATypeOfYourOwnListsWhatItWasRegisteredWith) {
  static bool built = false;
  const auto factory = [](ConfigNode& node) -> std::shared_ptr<const Dataset> {
    node.need<std::string>("path");
    built = true;
    return nullptr;
  };
  register_dataset("CatalogTestDataset", factory, AnyOptions(CatalogTestOptions()));
  register_dataset("CatalogTestPlain", factory);
  ASSERT_EQ(keys_of_type({"dataset", ""}, "CatalogTestDataset").size(), 1U);
  EXPECT_EQ(keys_of_type({"dataset", ""}, "CatalogTestDataset")[0].path, "path");
  EXPECT_TRUE(keys_of_type({"dataset", ""}, "CatalogTestPlain").empty());
  EXPECT_FALSE(built);
}

}  // namespace
}  // namespace duet
