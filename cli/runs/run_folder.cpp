#include "cli/runs/run_folder.h"
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include "base/error.h"
#include "io/file_io.h"

namespace duet {

namespace fs = std::filesystem;

namespace {

bool is_saved_config(const fs::path& path) {
  constexpr std::string_view kStart = "# The config of this run as it was resolved";
  try {
    const file_io::FileReader file(path.string());
    std::string start(std::min<uint64_t>(file.size(), kStart.size()), '\0');
    file.read(0, start.data(), start.size());
    return start == kStart;
  } catch (const file_io::IoError&) {
    return false;
  }
}

// Where the log lies: the config may name another file.
std::string log_path(const std::string& folder, const SavedConfig& config) {
  std::error_code ignored;
  for (const auto& [path, value] : config.values) {
    const bool is_file = path == "default_hooks.logger.file" ||
                         (path.starts_with("default_hooks.logger.sinks.") && path.ends_with(".file"));
    if (is_file && fs::is_regular_file(value.text, ignored)) return value.text;
  }
  return folder + "/log.jsonl";
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The folder's own name, or as much of the path as tells it from the others.
std::vector<std::string> short_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    std::error_code failed;
    const fs::path whole = fs::weakly_canonical(path, failed);
    names.push_back((failed ? fs::path(path) : whole).filename().string());
  }
  if (std::set<std::string>(names.begin(), names.end()).size() < names.size()) return paths;
  return names;
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path + "/log.jsonl", ignored) || fs::is_regular_file(path + "/run.lock", ignored) ||
         is_saved_config(path + "/config.yaml");
}

RunFolder read_progress(const std::string& path) {
  RunFolder run;
  run.path = without_slash(path);
  run.name = short_names({run.path}).front();
  run.config = read_saved_config(run.path + "/config.yaml");
  run.log = read_logged_run(log_path(run.path, run.config));
  if (run.log.mode.empty()) run.log.mode = run.config.text("mode");
  run.best = best_metric_of(run.config, run.log);
  return run;
}

RunFolder read_run_folder(const std::string& path) {
  require<ConfigError>(is_run_folder(path),
                       "[duet] found no log.jsonl, run.lock or config.yaml of a run in '" + path +
                           "', expected the work_dir of a run; duet list FOLDER shows those below");
  RunFolder run = read_progress(path);
  run.state = status_of_run(run.path, run.log);
  run.environment = read_environment(run.path, run.log);
  return run;
}

std::vector<RunFolder> read_run_folders(const std::vector<std::string>& paths) {
  std::vector<RunFolder> runs;
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    runs.push_back(read_run_folder(path));
    require<ConfigError>(seen.insert(fs::weakly_canonical(path).string()).second,
                         "[duet] found the run '" + path + "' twice, expected each once; leave one of them out");
  }
  std::vector<std::string> clean;
  for (const RunFolder& run : runs) clean.push_back(run.path);
  const std::vector<std::string> names = short_names(clean);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
  return runs;
}

std::vector<std::string> find_run_folders(const std::string& root) {
  std::error_code failed;
  if (!fs::is_directory(root, failed)) {
    throw ConfigError("[duet] found no folder '" + root + "', expected one that holds runs; name it: duet list FOLDER");
  }
  std::vector<std::string> found;
  const std::string start = without_slash(root);
  if (is_run_folder(start)) found.push_back(start);
  fs::recursive_directory_iterator entry(start, fs::directory_options::skip_permission_denied, failed);
  for (const fs::recursive_directory_iterator end; !failed && entry != end; entry.increment(failed)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored)) continue;
    const std::string name = entry->path().filename().string();
    if (name == "checkpoints" || name.starts_with("checkpoints.") || name == "vis_data" || name.starts_with(".git")) {
      entry.disable_recursion_pending();
    } else if (is_run_folder(entry->path().string())) {
      found.push_back(entry->path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace duet
