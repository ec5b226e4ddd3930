#include "optim/groups/detail/layer_depth.h"
#include <array>
#include <optional>
#include <string_view>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

bool is_token(const std::string& name) { return name == "cls_token" || name == "mask_token" || name == "pos_embed"; }

// The number at the `index`-th place between the dots of `name`, which starts with `list`: 5 for ("stages.2.5.weight",
// "stages", 2). Nothing if the name starts otherwise.
std::optional<int64_t> number_in(const std::string& name, const std::string& list, int index) {
  if (name.rfind(list + ".", 0) != 0) return std::nullopt;
  std::string_view rest = name;
  for (int i = 0; i < index; ++i) {
    const std::size_t dot = rest.find('.');
    rest.remove_prefix(dot == std::string_view::npos ? rest.size() : dot + 1);
  }
  const std::optional<int64_t> number = parse_number<int64_t>(rest.substr(0, rest.find('.')));
  if (number && *number >= 0) return number;
  throw ConfigError(c10::str("[LayerDecay] found the parameter '", name, "', expected a number at place ", index,
                             " of its name; give the depths by Task::layer_depth"));
}

LayerDepth at_depth(int64_t id, const std::string& name, int64_t num_layers) {
  if (id >= 0 && id < num_layers + 2) return {id, num_layers + 2};
  throw ConfigError(c10::str("[LayerDecay] '", name, "' lies at depth ", id, ", but num_layers is ", num_layers,
                             ", which allows at most ", num_layers + 1, "; set num_layers to what the backbone has"));
}

// Position in ConvNeXt's four stages.
std::size_t stage(int64_t number, const std::string& name) {
  if (number < 4) return static_cast<std::size_t>(number);
  throw ConfigError(c10::str("[LayerDecay] found stage ", number, " in '", name,
                             "', expected at most 3 as ConvNeXt has; give the depths by Task::layer_depth"));
}

}  // namespace

LayerDepth convnext_layer_depth(const std::string& name, int64_t num_layers) {
  int64_t id = num_layers + 1;
  if (is_token(name)) {
    id = 0;
  } else if (const auto downsample = number_in(name, "downsample_layers", 1)) {
    id = std::array<int64_t, 4>{0, 2, 3, num_layers}[stage(*downsample, name)];
  } else if (const auto found = number_in(name, "stages", 1)) {
    const std::size_t number = stage(*found, name);
    const int64_t block = *number_in(name, "stages", 2);
    id = std::array<int64_t, 4>{1, 2, 3 + block / 3, num_layers}[number];
  }
  return at_depth(id, name, num_layers);
}

LayerDepth convnext_stage_depth(const std::string& name, int64_t num_layers) {
  int64_t id = num_layers + 1;
  if (is_token(name) || name.rfind("downsample_layers", 0) == 0) {
    id = 0;
  } else if (const auto found = number_in(name, "stages", 1)) {
    id = *found + 1;
  }
  return at_depth(id, name, num_layers);
}

LayerDepth vit_layer_depth(const std::string& name, int64_t num_layers) {
  int64_t id = num_layers + 1;
  auto block = number_in(name, "layers", 1);
  if (!block) block = number_in(name, "blocks", 1);
  if (is_token(name) || name.rfind("patch_embed", 0) == 0) {
    id = 0;
  } else if (block) {
    id = *block + 1;
  }
  return at_depth(id, name, num_layers);
}

}  // namespace duet
