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

// Of a case's type and options.
inline OptimizerOptions described_options(const nlohmann::json& described) {
  OptimizerOptions options = OptimizerOptions::of_type(described.at("type"));
  for (const auto& [name, value] : described.at("options").items()) {
    const OptionField* const field = options.fields().find(name);
    if (field == nullptr) throw std::runtime_error(options.type() + " has no option " + name);
    switch (field->kind) {
      case OptionField::Kind::kBool: options.set(name, value.get<bool>()); break;
      case OptionField::Kind::kInteger: options.set(name, value.get<int64_t>()); break;
      case OptionField::Kind::kText: options.set(name, value.get<std::string>()); break;
      case OptionField::Kind::kNumbers: options.set(name, value.get<std::vector<double>>()); break;
      default: options.set(name, value.get<double>());
    }
  }
  return options;
}

}  // namespace duet::testing
