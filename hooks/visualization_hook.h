#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

struct SamplePainterOptions {
  double alpha = 0.6;                  // of the colours over the image, in [0, 1]
  std::vector<std::string> palette{};  // "#rrggbb" of class 0, 1, ...; empty: those of Pascal VOC
  int64_t ignore_index = 255;          // painted white
  int64_t zoom = 0;                    // picture's pixels for one of the image; 0: panels of at least 128
  std::string image = "image", target = "target", prediction = "prediction";

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

struct VisualizationHookOptions {
  // A picture of one sample of a batch, uint8 [height, width, 3] RGB on the CPU. Batch and outputs are on their device.
  using Painter = std::function<at::Tensor(const Batch& batch, const NamedTensors& outputs, int64_t sample)>;

  bool draw = false;        // without it nothing happens
  int64_t interval = 50;    // >= 1: draws the 50th, 100th, ... batch of a pass; counts those of all ranks
  int64_t max_samples = 0;  // of such a batch; 0: all
  bool show = false;        // windows: refused, there is none on a server
  SamplePainterOptions paint{};
  Painter painter = nullptr;  // instead of the built-in one

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// Draws predictions of validation and test, as mmsegmentation's SegVisualizationHook does, and of the predict loop:
// into <work_dir>/vis_data/{val,test,predict}_<sample>_<step>.png, sample being its number within the pass, and to
// whoever listens to images of TrainContext::log, as "val_<sample>". Only batches that are drawn are read from the
// device.
//
// Of several ranks rank 0 draws, as often as a single process with the same options would: its own batch of those in
// which the interval comes round (every one if that is less than the ranks are). Numbers are those of the whole pass,
// as DistributedSampler shares it out.
class VisualizationHook : public Hook {
 public:
  // Throws ConfigError for options out of range.
  explicit VisualizationHook(VisualizationHookOptions options = {});

  std::string name() const override { return "visualization"; }
  int priority() const override { return kNormal; }

  void after_val_iter(TrainContext& context) override { after_iter(context, "val"); }
  void after_test_iter(TrainContext& context) override { after_iter(context, "test"); }
  void after_predict_iter(TrainContext& context) override { after_iter(context, "predict"); }

 private:
  void after_iter(TrainContext& context, const std::string& mode);
  void write_file(const TrainContext& context, const std::string& name, const at::Tensor& picture);

  VisualizationHookOptions options_;
  int64_t samples_ = 0;  // of this pass and rank, before this batch
  bool failed_ = false;  // a file could not be written
};

}  // namespace duet
