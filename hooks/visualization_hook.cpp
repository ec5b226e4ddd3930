#include "hooks/visualization_hook.h"

#include <c10/util/StringUtil.h>
#include "distributed/communicator.h"
#include "base/error.h"
#include "hooks/detail/sample_painter.h"
#include "io/png.h"
#include "base/log.h"
#include "core/run_log.h"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace duet {

void VisualizationHookOptions::validate() const {
  const auto fail = [](const std::string& what) { throw ConfigError("[VisualizationHook] " + what); };
  if (interval < 1) fail(c10::str("interval is ", interval, ", expected at least 1 batch"));
  if (max_samples < 0) fail(c10::str("max_samples is ", max_samples, ", expected 0 (all) or a number of samples"));
  if (show) fail("show is true, but pictures go to files and logs; set draw: true and look at <work_dir>/vis_data");
  paint.validate();
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
  const int64_t ranks = context.communicator == nullptr ? 1 : context.communicator->world_size();
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
