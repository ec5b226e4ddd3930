#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/train_context.h"
#include "distributed/communicator.h"

namespace duet {

// The folder that the hook class `who` writes to, made if it is missing: `wanted`, or <work_dir>/<name> if that is
// empty. Throws ConfigError if there is no work_dir then, or the folder cannot be made. Private to hooks/.
inline std::string output_folder(const char* who, const std::string& wanted, const TrainContext& context,
                                 const char* name) {
  if (wanted.empty() && context.work_dir.empty()) {
    throw ConfigError(c10::str(
        "[", who, "] found no work_dir, expected a folder to write to; set work_dir, or the folder ", "of this hook"));
  }
  std::string folder = wanted.empty() ? context.work_dir + "/" + name : wanted;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    throw ConfigError(c10::str("[", who, "] found folder '", folder, "' that cannot be made (", failed.message(),
                               "), expected a writable place; change work_dir, or the folder of this hook"));
  }
  return folder;
}

// What tells apart what every rank writes: "rank-1"; empty where there is one process. Private to hooks/.
inline std::string rank_name(const TrainContext& context) {
  if (context.communicator->world_size() <= 1) return {};
  return "rank-" + std::to_string(context.communicator->rank());
}

}  // namespace duet
