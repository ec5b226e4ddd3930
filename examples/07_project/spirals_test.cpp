// What a config makes of the types: the data has the promised form, and the model learns it in either mode.

#include "spirals.h"
#include <cstdlib>
#include <iostream>
#include <duet/cli/registry.h>
#include <duet/duet.h>

namespace {

void expect(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "not so: " << what << "\n";
  std::exit(1);
}

double accuracy_after_training(duet::Mode mode) {
  duet::seed_all(0);
  const auto node = [](const char* text) { return duet::ConfigNode::parse_text(text, "test"); };
  const auto trainer = duet::make_trainer(mode, duet::make_model(node("{type: SpiralNet, hidden: 32}"), {}),
                                          {.optimizer = duet::AdamW{.lr = 0.01}, .loop = {.max_epochs = 20}});
  trainer->add_metric<duet::Accuracy>();
  duet::DataLoader train(duet::make_dataset(node("{type: Spirals}")), {.batch_size = 50, .shuffle = true});
  duet::DataLoader unseen(duet::make_dataset(node("{type: Spirals, size: 500, seed: 1}")), {.batch_size = 100});
  trainer->train(train);
  return trainer->test(unseen).at("accuracy");
}

}  // namespace

int main() {
  register_types();
  const duet::Batch batch = Spirals({.size = 10, .arms = 2}).get({0, 3});
  expect(batch["point"].sizes() == at::IntArrayRef({2, 2}), "a point has two coordinates");
  expect(batch["target"].sum().item<int64_t>() == 1, "points 0 and 3 lie on arms 0 and 1");
  const double eager = accuracy_after_training(duet::Mode::kEager);
  const double graph = accuracy_after_training(duet::Mode::kGraph);
  std::cout << "accuracy " << eager << " in eager mode, " << graph << " in graph mode\n";
  expect(eager == graph, "both modes train alike");
  expect(eager > 0.8, "the arms can be told apart");
}
