#pragma once

#include <memory>
#include <string>
#include "hooks/log_sink.h"

namespace duet {

struct WandbOptions {
  std::string folder;  // gets offline-run-<time>-<id>/run-<id>.wandb
  std::string project = "duet";
  std::string name{};         // shown for the run; empty: W&B makes one up
  std::string entity{};       // user or team; empty: that of whoever uploads
  std::string id{};           // empty: the folder's newest if the run goes on, else 8 random characters
  std::string config = "{}";  // what the run was configured with: a JSON object

  // ConfigError names the field.
  void validate() const;
};

// Records as a run that `wandb sync FOLDER/offline-run-*` uploads. Values of one step share a row under "kind/name",
// values of the start record join the config, those of stop the summary, and lines are the run's console output.
// W&B wants steps that only grow: a record with a smaller one (an epoch) is put into the row of the current step
// with its own as "kind/step". Pictures are not part of it.
class WandbSink : public LogSink {
 public:
  // Creates the folder; ConfigError if that fails. The file comes with the first record: a start at a step above 0
  // goes on with the run that the folder holds, under the same id.
  explicit WandbSink(WandbOptions options);
  // Ends the run in the file, as failed if there was an error record.
  ~WandbSink() override;

  // Error if the file cannot be written: a full disk, no permission.
  void write(const LogRecord& record) override;
  void flush() override;
  bool takes_images() const override { return false; }

 private:
  class Run;

  WandbOptions options_;
  std::unique_ptr<Run> run_;
};

}  // namespace duet
