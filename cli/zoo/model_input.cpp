#include "cli/zoo/model_input.h"
#include <ATen/TensorOperators.h>
#include <c10/util/StringUtil.h>

namespace duet {

at::Tensor model_input(const Batch& batch, const std::string& name) {
  const at::Tensor& input = batch[name];
  if (input.scalar_type() == at::kByte) return input.to(at::kFloat) / 255;
  if (input.scalar_type() == at::kFloat) return input;
  throw ConfigError(c10::str("[Model] '", name, "' is ", input.scalar_type(), input.sizes(),
                             ", expected float32, or uint8 pictures; set cast: {", name, ": float32} at the data"));
}

std::string image_way_out(const at::Tensor& image, const std::string& keys) {
  constexpr int64_t kChannels = 4;
  const bool has_channels_last = image.dim() == 4 && image.size(3) <= kChannels && image.size(1) > kChannels;
  return image.dim() == 3 || has_channels_last ? "; add transforms: [{type: ChannelsFirst}] at the data"
                                               : "; set " + keys;
}

}  // namespace duet
