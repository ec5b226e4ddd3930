#pragma once

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>
#include "optim/optimizers/optimizer_options.h"

namespace duet::testing {

// The cases that make_references.py describes in that file; none where it has not run.
inline nlohmann::json described_cases(const std::string& path) {
  std::ifstream file(path);
  return file ? nlohmann::json::parse(file) : nlohmann::json::array();
}

// Sets the fields of `options` that are described by name.
inline void set_options(const OptionFields& fields, void* options, const nlohmann::json& described) {
  for (const auto& [name, value] : described.items()) {
    const OptionField* const field = fields.find(name);
    if (field == nullptr) throw std::runtime_error(fields.name() + " has no option " + name);
    switch (field->kind) {
      case OptionField::Kind::kBool: field->set(options, value.get<bool>()); break;
      case OptionField::Kind::kInteger: field->set(options, value.get<int64_t>()); break;
      case OptionField::Kind::kText: field->set(options, value.get<std::string>()); break;
      case OptionField::Kind::kNumbers: field->set(options, value.get<std::vector<double>>()); break;
      default: field->set(options, value.get<double>());
    }
  }
}

// Of a case's type and options.
inline OptimizerOptions described_options(const nlohmann::json& described) {
  OptimizerOptions options = OptimizerOptions::of_type(described.at("type"));
  set_options(options.fields(), options.mutable_data(), described.at("options"));
  return options;
}

}  // namespace duet::testing
