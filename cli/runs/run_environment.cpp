#include "cli/runs/run_environment.h"
#include <algorithm>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include "checkpoint/checkpoint.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

void add_flat(const std::string& path, const Json& value, NamedTexts& out) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, item] : value.items()) add_flat(path.empty() ? key : path + "." + key, item, out);
    return;
  }
  const bool is_text = value.is_string();
  out.emplace_back(path,
                   is_text ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// "name: value" lines as entries, other texts as one.
void add_text_of_environment(const std::string& name, const std::string& text, NamedTexts& out) {
  const Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) {
    add_flat("", parsed, out);
  } else {
    out.emplace_back(name, text);
  }
}

void add_manifest(const std::string& folder, NamedTexts& out) {
  try {
    const auto checkpoints = CheckpointStore(CheckpointStore::root_of(folder)).list();
    if (checkpoints.empty()) return;
    const Manifest manifest = CheckpointStore::read_manifest(checkpoints.front());
    out.emplace_back("newest checkpoint", "step " + std::to_string(manifest.step) + ", saved " + manifest.created);
    out.emplace_back("checkpoint.duet", manifest.duet_version);
    out.emplace_back("checkpoint.libtorch", manifest.torch_version);
  } catch (const std::exception& error) {
    out.emplace_back("newest checkpoint", std::string("not readable: ") + error.what());
  }
}

}  // namespace

NamedTexts read_environment(const std::string& folder, const LoggedRun& log) {
  NamedTexts environment;
  std::ifstream file(folder + "/environment.json");
  if (file) {
    const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) add_flat("", json, environment);
  }
  for (const auto& [name, text] : log.texts) {
    if (name == "runtime_info" || name == "environment") add_text_of_environment(name, text, environment);
  }
  add_manifest(folder, environment);
  return environment;
}

}  // namespace duet
