#include "register_models.h"
#include <duet/cli/registry.h>
#include <duet/duet.h>
#include "lstm.h"
#include "resnet.h"
#include "unet.h"
#include "vit.h"

namespace {

template <duet::Described Options>
void add_model(const char* name, std::unique_ptr<duet::Task> (*make)(const Options&)) {
  duet::register_model(
      name, [make](duet::ConfigNode& node, duet::ModelContext&) { return make(duet::read_all_options<Options>(node)); },
      duet::AnyOptions(Options()));
}

}  // namespace

void register_models() {
  add_model("ResNet", make_resnet);
  add_model("ViT", make_vit);
  add_model("UNet", make_unet);
  add_model("Lstm", make_lstm);
}
