#include "hooks/visualization_hook.h"
#include <algorithm>
#include <filesystem>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "core/train_context.h"
#include "distributed/communicator.h"
#include "hooks/detail/sample_painter.h"
#include "io/png.h"

namespace duet {

const OptionFields& VisualizationHookOptions::fields() {
  using O = VisualizationHookOptions;
  static const OptionFields kFields = OptionFields::of<O>("VisualizationHook", [](const FieldAdder<O>& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.paint.*member; }; };
    using P = SamplePainterOptions;
    add("draw", &O::draw, "without it nothing happens");
    add("interval", &O::interval, "batches of a pass from one that is drawn to the next").in(at_least(1));
    add("max_samples", &O::max_samples, "samples of such a batch; 0: all")
        .in(at_least(0))
        .expects("0 (all) or a number of samples");
    add("show", &O::show, "windows: refused");
    add("alpha", of(&P::alpha), "weight of the colours over the image, in [0, 1]");
    add("palette", of(&P::palette), "\"#rrggbb\" of class 0, 1, ...");
    add("ignore_index", of(&P::ignore_index), "class that is painted white");
    add("zoom", of(&P::zoom), "pixels for one of the image; 0: by its size");
    add("image", of(&P::image), "tensor of the batch");
    add("target", of(&P::target), "tensor of the batch");
    add("prediction", of(&P::prediction), "tensor of the outputs");
    add.rule([](const O& o) {
      require<ConfigError>(
          !o.show,
          "[VisualizationHook] show is true, but pictures go to files and logs; set draw: true and look at "
          "<work_dir>/vis_data");
      o.paint.validate();
    });
  });
  return kFields;
}

VisualizationHook::VisualizationHook(VisualizationHookOptions options) : options_(std::move(options)) {
  options_.validate();
  if (!options_.painter) options_.painter = SamplePainter(options_.paint);
}

void VisualizationHook::after_iter(TrainContext& context, const std::string& mode) {
  const bool listened = context.log.wants_images();
  if (!options_.draw || !context.is_main || (context.work_dir.empty() && !listened)) return;
  if (context.evaluation.batch_index == 0) samples_ = 0;
  // All ranks are at a batch of their own now, and those before were of one size.
  const int64_t ranks = context.communicator->world_size();
  const int64_t first = ranks * std::exchange(samples_, samples_ + context.evaluation.batch->size());
  const int64_t batches = ranks * context.evaluation.batch_index;  // before these
  if ((batches + ranks) / options_.interval == batches / options_.interval) return;
  int64_t count = context.evaluation.batch->size();
  if (options_.max_samples > 0) count = std::min(count, options_.max_samples);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor picture = options_.painter(*context.evaluation.batch, *context.evaluation.outputs, i);
    const std::string name = c10::str(mode, "_", first + i);
    if (!context.work_dir.empty() && !failed_) write_file(context, name, picture);
    if (listened) context.log.image(name, picture);
  }
}

// A picture is not worth a run: a failure is told once.
void VisualizationHook::write_file(const TrainContext& context, const std::string& name, const at::Tensor& picture) {
  const std::filesystem::path folder = std::filesystem::path(context.work_dir) / "vis_data";
  try {
    std::filesystem::create_directories(folder);
    write_png((folder / c10::str(name, "_", context.progress.step, ".png")).string(), picture);
  } catch (const std::exception& error) {
    failed_ = true;
    log_error(c10::str("[VisualizationHook] cannot write pictures to '", folder.string(), "' (", error.what(),
                       "); no more are written"));
  }
}

}  // namespace duet
