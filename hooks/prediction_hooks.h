#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "../base/options.h"
#include "../core/hook.h"

// What becomes of predictions: files of them, pictures.
namespace duet {

struct PredictionWriterHookOptions {
  std::string folder = "";               // empty: <work_dir>/predictions
  std::string format = "safetensors";    // "safetensors": tensors; "jsonl": a line per sample; "both"
  bool per_batch = false;                // safetensors: a file for each batch, not one for the pass
  std::vector<std::string> keys = {};    // outputs to write; empty: all
  bool with_inputs = false;              // the tensors of the batch too, as "input.<name>"
  std::string class_key = "prediction";  // jsonl: the output of shape [samples, classes or values]

  static const OptionFields& fields();
};

// Writes what the model predicts:
//
//   predictions.safetensors   outputs of the whole pass, batches joined along their first dimension
//   batch-000017.safetensors  per_batch: outputs of that batch, numbered from 0
//   predictions.jsonl         {"index": 5, "name": "b/7.png", "class": 1, "class_name": "cat", "score": 2.2,
//                             "probability": 0.9} per sample: its largest output, where it is, and the softmax there;
//                             where numbers are predicted {"index": 5, "values": [2.2, 0.1]}, or "value": 2.2
//
// A sample's and a class's name are there if the data knows them (DataSource). Outputs are scores of classes where the
// data names these, or has whole numbers as targets. Outputs that sum to 1 are probabilities themselves.
// A file is there as a whole or not at all; files of the whole pass replace those of an earlier one at its end, files
// of batches at its start. A pass that fails leaves what it wrote. Without per_batch the outputs stay in memory until
// the end. Several ranks write what they saw each to a folder of its own, rank-0, rank-1, ... below the folder, and
// count from 0 there.
class PredictionWriterHook : public Hook {
 public:
  explicit PredictionWriterHook(PredictionWriterHookOptions options = {});

  std::string name() const override { return "prediction_writer"; }

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

struct SamplePainterOptions {
  double alpha = 0.6;                  // of the colours over the image, in [0, 1]
  std::vector<std::string> palette{};  // "#rrggbb" of class 0, 1, ...; empty: those of Pascal VOC
  int64_t ignore_index = 255;          // painted white
  int64_t zoom = 0;                    // picture's pixels for one of the image, to 64; 0: panels of at least 128
  std::string image = "image", target = "target", prediction = "prediction";
};

// A picture of a prediction. A painter may give its pixels alone.
struct Painting {
  Painting(at::Tensor pixels, std::string legend = "") : pixels(std::move(pixels)), legend(std::move(legend)) {}

  at::Tensor pixels;   // uint8 [height, width, 3] RGB on the CPU
  std::string legend;  // what is where in it: its file's Description, and a line of `duet report`
};

struct VisualizationHookOptions {
  // A picture of one sample of a batch. Batch and outputs are on their device.
  using Painter = std::function<Painting(const Batch& batch, const NamedTensors& outputs, int64_t sample)>;

  bool draw = false;        // without it nothing happens
  int64_t interval = 50;    // >= 1: draws the 50th, 100th, ... batch of a pass; counts those of all ranks
  int64_t max_samples = 0;  // of such a batch; 0: all
  bool show = false;        // opens each file with the desktop's viewer
  double wait_time = 0;     // seconds that the pass waits after each picture that is shown
  SamplePainterOptions paint{};
  Painter painter = nullptr;  // instead of the built-in one

  static const OptionFields& fields();
};

// Makes a picture of one sample, with a legend. Values in [0, 1] are shown as they are; where an image has others, its
// smallest is black and its largest white.
//   regions: predictions [N, C, H, W] or class numbers [N, H, W]. Image, ground truth, prediction side by side, classes
//   in their colours.
//   classes: predictions [N, C] or class numbers [N]. The image in a green frame if the class is right and a red one if
//   not; below it on the left the colour of the true class, on the right that of the predicted one.
// Without a target the picture shows the prediction alone. Throws ConfigError for a palette of something else; the
// painter throws it if there is no image or prediction of such a shape or if the target is no class (of a regression,
// say), and DataError for a class without a colour.
VisualizationHookOptions::Painter sample_painter(const SamplePainterOptions& options = {});

// Draws predictions of validation and test, as mmsegmentation's SegVisualizationHook does, and of the predict loop:
// into <work_dir>/vis_data/{val,test,predict}_<sample>_<step>.png, and to whoever listens to images of
// TrainContext::log, as "val_<sample>". <sample> is the data's name for it (DataSource::sample_name) without its ending
// and with - for slashes, and its number within the pass where it has no name, or shares it ("cats-001.2"). Pictures
// have the values from before they were normalized (DataSource::shown). Only batches that are drawn are read from the
// device. A sample that the painter throws at gets no picture; the first one is warned of.
//
// Of several ranks rank 0 draws, as often as a single process would: its own batch of those in which the interval comes
// round (every one if that is less than the ranks are). Numbers are those of the whole pass.
class VisualizationHook : public Hook {
 public:
  explicit VisualizationHook(VisualizationHookOptions options = {});

  std::string name() const override { return "visualization"; }

  void after_val_iter(TrainContext& context) override { after_iter(context, "val"); }
  void after_test_iter(TrainContext& context) override { after_iter(context, "test"); }
  void after_predict_iter(TrainContext& context) override { after_iter(context, "predict"); }

 private:
  void after_iter(TrainContext& context, const std::string& mode);
  std::string name_of(const TrainContext& context, int64_t row, int64_t number);
  std::optional<Painting> painting_of(const Batch& batch, const NamedTensors& outputs, int64_t row);
  void write_file(const TrainContext& context, const std::string& name, const Painting& painting);
  void show_file(const std::string& path);

  VisualizationHookOptions options_;
  int64_t samples_ = 0;          // of this pass and rank, before this batch
  std::set<std::string> names_;  // that this pass has given
  bool failed_ = false;          // a file could not be written
  bool warned_ = false;          // of a sample that could not be painted
  bool shows_ = true;            // until no viewer could be opened
};

}  // namespace duet
