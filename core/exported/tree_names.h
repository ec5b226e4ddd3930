#pragma once

#include <string>
#include <vector>
#include <nlohmann/json_fwd.hpp>

// PyTorch flattens nested arguments and results; the names of their leaves, in that order.

namespace duet::exported {

struct InputName {
  std::string name;    // "x", "batch.image"
  std::string python;  // "L['batch']['image']"
};

// `signature`: the ModuleCallSignature of schema.py. Empty where it does not say.
// `named_tuples`: GraphModule's treespec_namedtuple_fields.
std::vector<InputName> input_names(const nlohmann::ordered_json& signature, const nlohmann::ordered_json& named_tuples);
// "logits", "aux.0"; "" for the only one.
std::vector<std::string> output_names(const nlohmann::ordered_json& signature,
                                      const nlohmann::ordered_json& named_tuples);

}  // namespace duet::exported
