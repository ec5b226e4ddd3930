#include "cli/zoo/segmentation_types.h"

#include <c10/util/StringUtil.h>
#include "cli/zoo/encoder_decoder.h"
#include "cli/zoo/fashion_scenes.h"
#include "core/task.h"

namespace duet {

std::shared_ptr<const Dataset> make_fashion_scenes(ConfigNode& node) {
  FashionScenesOptions options;
  options.root = node.read<std::string>("root", options.root);
  options.split = node.read_choice("split", options.split, {"train", "test"});
  options.length = node.read<int64_t>("length", options.length);
  options.seed = node.read<int64_t>("seed", options.seed);
  options.size = node.read<std::vector<int64_t>>("size", options.size);
  options.max_objects = node.read<int64_t>("max_objects", options.max_objects);
  options.min_scale = node.read<double>("min_scale", options.min_scale);
  options.max_scale = node.read<double>("max_scale", options.max_scale);
  options.flip = node.read<bool>("flip", options.flip);
  options.threshold = node.read<double>("threshold", options.threshold);
  options.noise = node.read<double>("noise", options.noise);
  options.ignore_rim = node.read<bool>("ignore_rim", options.ignore_rim);
  options.normalize = node.read<bool>("normalize", options.normalize);
  options.mean = node.read<double>("mean", options.mean);
  options.std = node.read<double>("std", options.std);
  node.reject_unknown();
  return std::make_shared<FashionScenes>(options);
}

std::unique_ptr<Task> make_encoder_decoder(ConfigNode& node, ModelContext& context) {
  EncoderDecoderOptions options;
  options.num_classes = node.read<int64_t>("num_classes", options.num_classes);
  options.in_channels = node.read<int64_t>("in_channels", options.in_channels);
  options.patch_size = node.read<int64_t>("patch_size", options.patch_size);
  options.channels = node.read<std::vector<int64_t>>("channels", options.channels);
  options.depths = node.read<std::vector<int64_t>>("depths", options.depths);
  options.decoder_channels = node.read<int64_t>("decoder_channels", options.decoder_channels);
  options.drop_path = node.read<double>("drop_path", options.drop_path);
  options.dropout = node.read<double>("dropout", options.dropout);
  node.reject_unknown();
  options.validate();
  const auto* scenes = dynamic_cast<const FashionScenes*>(context.train_data);
  if (scenes != nullptr && scenes->max_label() >= options.num_classes) {
    node.fail("num_classes",
              c10::str("is ", options.num_classes, ", but data.train has labels up to ", scenes->max_label(),
                       " (0 is the background); set at least ", scenes->max_label() + 1));
  }
  return make_encoder_decoder(options);
}

}  // namespace duet
