#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include "checkpoint/checkpoint.h"
#include "cli/runs/run_folder.h"
#include "io/bounded_json.h"
#include "io/file_io.h"

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

// Empty if it cannot be read, or is beyond what a run writes there.
std::string small_text(const std::string& path) {
  constexpr uint64_t kMost = uint64_t{16} << 20;
  try {
    return file_io::read_text(path, kMost);
  } catch (const file_io::IoError&) {
    return "";
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
  const auto json = parse_json_or_discard<Json>(small_text(folder + "/environment.json"));
  if (json.is_object()) add_flat("", json, environment);
  for (const auto& [name, text] : log.texts) {
    if (name == "runtime_info" || name == "environment") environment.emplace_back(name, text);
  }
  add_manifest(folder, environment);
  return environment;
}

}  // namespace duet
