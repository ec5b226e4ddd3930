#pragma once

#include <memory>
#include <string>
#include "hooks/logger_hook.h"

// Where records go. Private to hooks/.
namespace duet {

// Whether the first record of a sink tells of a training that goes on after some steps: a start, or a text before it.
inline bool goes_on(const LogRecord& first) {
  return first.step > 0 && (first.kind == "start" || first.kind == "text");
}

// The sink that `options` of a logger ask for; null if it would write to a work_dir and there is none. Throws
// ConfigError for a place that cannot be written.
std::unique_ptr<LogSink> make_sink(const LogSinkOptions& options, const LoggerHookOptions& logger,
                                   const std::string& work_dir, const std::string& run_id);

// A record's line in the log, and the progress of training on one line of stderr below, if that is a terminal.
std::unique_ptr<LogSink> terminal_sink(bool progress = true);

// Records as one JSON object per line, appended to a file: kind, the values, step, wall_time (ISO 8601, UTC) and, if
// there is one, run_id. NaN and infinities are the strings "nan", "inf" and "-inf". Creates the file and its folder;
// ConfigError if that fails. A file that ends in half a line, after a crash, goes on with a new one. Where training
// goes on from before the file's last step, a line of kind "void" says so: what stands above it of steps after its
// `step`, up to its `last_step`, was undone.
std::unique_ptr<LogSink> jsonl_sink(const std::string& file, const std::string& run_id = "");

// Records as a TensorBoard event file. Numbers become charts under "kind/name" (float32, as TensorBoard stores them),
// pictures, histograms and the values of a text record go under their own names, and start, stop and error become
// texts. A run that goes on writes a new file that makes TensorBoard forget what the older ones say about steps from
// there on. Creates the folder; ConfigError if that fails. The file comes with the first record.
std::unique_ptr<LogSink> tensorboard_sink(const std::string& folder);

// Records as a run that `wandb sync FOLDER/offline-run-*` uploads, in offline-run-<time>-<id>/run-<id>.wandb. Values of
// one step share a row under "kind/name", values of the start record join the config (a JSON object), those of stop the
// summary, and lines are the run's console output. W&B wants steps that only grow: a record with a smaller one (an
// epoch) is put into the row of the current step with its own as "kind/step". Pictures are not part of it. Creates the
// folder; ConfigError if that fails. The file comes with the first record.
std::unique_ptr<LogSink> wandb_sink(LogSinkOptions options, const std::string& config = "{}");

}  // namespace duet
