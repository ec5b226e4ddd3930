#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

struct PredictionWriterHookOptions {
  std::string folder = "";               // empty: <work_dir>/predictions
  std::string format = "safetensors";    // "safetensors": tensors; "jsonl": arg-max classes; "both"
  bool per_batch = false;                // safetensors: a file for each batch, not one for the pass
  std::vector<std::string> keys = {};    // outputs to write; empty: all
  bool with_inputs = false;              // the tensors of the batch too, as "input.<name>"
  std::string class_key = "prediction";  // jsonl: the output of shape [samples, classes]

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// Writes what the model predicts:
//
//   predictions.safetensors   outputs of the whole pass, batches joined along their first dimension
//   batch-000017.safetensors  per_batch: outputs of that batch, numbered from 0
//   predictions.jsonl         {"index": 5, "class": 3, "score": 0.91} per sample: its largest output and where it is
//
// A file is there as a whole or not at all; files of the whole pass replace those of an earlier one at its end, files
// of batches at its start. A pass that fails leaves what it wrote. Without per_batch the outputs stay in memory until
// the end. Several ranks write what they saw each to a folder of its own, rank-0, rank-1, ... below the folder, and
// count from 0 there.
class PredictionWriterHook : public Hook {
 public:
  // Throws ConfigError for options out of range.
  explicit PredictionWriterHook(PredictionWriterHookOptions options = {});

  std::string name() const override { return "prediction_writer"; }
  int priority() const override { return kNormal; }

  // Throws ConfigError if there is no folder to write to.
  void before_predict_epoch(TrainContext& context) override;
  // Throws ConfigError that lists the outputs if one to write is not among them, DataError for outputs that do not fit.
  void after_predict_iter(TrainContext& context) override;
  void after_predict_epoch(TrainContext& context) override;

 private:
  NamedTensors selected(const TrainContext& context) const;
  void keep(const NamedTensors& tensors);
  void add_classes(const TrainContext& context);
  void write_whole();

  PredictionWriterHookOptions options_;
  std::string folder_;
  std::vector<std::pair<std::string, std::vector<at::Tensor>>> kept_;  // batches of each output, on the CPU
  std::string lines_;                                                  // of the JSONL file
  int64_t samples_ = 0;                                                // in them
};

// Whether a file of this name is one that PredictionWriterHook writes per batch: "batch-000012.safetensors".
bool is_prediction_of_batch(const std::string& name);

}  // namespace duet
