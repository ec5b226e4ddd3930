#include "cli/catalog.h"
#include <algorithm>
#include <gtest/gtest.h>
#include "cli/registry.h"

// What `duet help` lists is what the code reads.

namespace duet {
namespace {

std::vector<std::string> paths_of(const std::vector<ConfigKey>& keys) {
  std::vector<std::string> paths;
  for (const ConfigKey& key : keys) paths.push_back(key.path);
  return paths;
}

const TypeKind& kind_called(const std::vector<TypeKind>& kinds, const std::string& name) {
  return *std::find_if(kinds.begin(), kinds.end(), [&](const TypeKind& kind) { return kind.name == name; });
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

TEST(Catalog, HoldsEveryKeyOnce) {
  const std::vector<std::string> paths = paths_of(keys_of_config());
  for (const std::string& path : paths) EXPECT_EQ(std::count(paths.begin(), paths.end(), path), 1) << path;
}

TEST(Catalog, EveryTypeOfEveryKindCanBeAsked) {
  for (const TypeKind& kind : type_kinds()) {
    EXPECT_FALSE(kind.types.empty()) << kind.name;
    const auto is_ours = [&](const std::string& type) { return is_built_in(kind.name, type); };
    if (kind.name != "schedule" && std::none_of(kind.types.begin(), kind.types.end(), is_ours)) continue;
    std::size_t with_keys = 0;
    for (const std::string& type : kind.types) with_keys += keys_of_type(kind, type).empty() ? 0 : 1;
    EXPECT_GT(with_keys, 0U) << kind.name;
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
  const auto keys = [](const char* type) { return paths_of(keys_of_type(kind_called(type_kinds(), "dataset"), type)); };
  EXPECT_EQ(keys("CatalogTestDataset"), std::vector<std::string>{"path"});
  EXPECT_TRUE(keys("CatalogTestPlain").empty());
  EXPECT_FALSE(built);
}

}  // namespace
}  // namespace duet
