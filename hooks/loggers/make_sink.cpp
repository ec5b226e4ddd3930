#include "hooks/loggers/make_sink.h"
#include <utility>
#include "base/error.h"
#include "hooks/logger_hook.h"
#include "hooks/loggers/jsonl_sink.h"
#include "hooks/loggers/tensorboard_sink.h"
#include "hooks/loggers/terminal_sink.h"
#include "hooks/loggers/wandb_sink.h"

namespace duet {

namespace {

std::string place(const std::string& wanted, const std::string& work_dir, const char* name) {
  if (!wanted.empty()) return wanted;
  return work_dir.empty() ? "" : work_dir + "/" + name;
}

WandbOptions wandb_options(const LogSinkOptions& options, const std::string& folder, const std::string& run_id) {
  WandbOptions wandb;
  wandb.folder = folder;
  if (!options.project.empty()) wandb.project = options.project;
  wandb.name = options.name;
  wandb.entity = options.entity;
  wandb.id = options.id.empty() ? run_id : options.id;
  return wandb;
}

}  // namespace

void LogSinkOptions::validate() const {
  if (type == "wandb") {
    wandb_options(*this, "wandb", "").validate();
    return;
  }
  for (const char* known : {"terminal", "jsonl", "tensorboard"}) {
    if (type == known) return;
  }
  throw ConfigError("[LoggerHook] found sink '" + type +
                    "', expected terminal, jsonl, tensorboard or wandb; correct it");
}

std::unique_ptr<LogSink> make_sink(const LogSinkOptions& options, const LoggerHookOptions& logger,
                                   const std::string& work_dir, const std::string& run_id) {
  if (options.type == "terminal") return std::make_unique<TerminalSink>(logger.progress);
  if (options.type == "jsonl") {
    const std::string file = place(options.file.empty() ? logger.file : options.file, work_dir, "log.jsonl");
    return file.empty() ? nullptr : std::make_unique<JsonlSink>(file, run_id);
  }
  const std::string folder = place(options.folder, work_dir, options.type.c_str());
  if (folder.empty()) return nullptr;
  if (options.type == "tensorboard") return std::make_unique<TensorBoardSink>(folder);
  WandbOptions wandb = wandb_options(options, folder, run_id);
  wandb.config = logger.config;
  return std::make_unique<WandbSink>(std::move(wandb));
}

}  // namespace duet
