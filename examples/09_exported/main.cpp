// A model of Python's, trained in C++: torch.export writes it in training mode, this program trains it in either mode
// with the same bits, and torch.export.load takes it back with its new weights.
//
// run:      python examples/09_exported/model.py export model.pt2
//           build/release/examples/09_exported graph model.pt2 trained.pt2      or eager: the same weights
//           python examples/09_exported/model.py test trained.pt2
// expected: "accuracy 0.8" or so, from 3 000 pictures, and the same accuracy in Python

#include <iostream>
#include <duet/cli/zoo/fashion_mnist.h>
#include <duet/duet.h>

std::shared_ptr<duet::FashionMnist> pictures(const std::string& split, int64_t count) {
  duet::FashionMnistOptions options;
  options.split = split;
  options.limit = count;
  return std::make_shared<duet::FashionMnist>(options);
}

int main(int argc, char** argv) {
  const duet::Mode mode = duet::parse_mode(argc > 1 ? argv[1] : "graph");
  const std::string model = argc > 2 ? argv[2] : "model.pt2", trained = argc > 3 ? argv[3] : "";
  duet::seed_all(0);

  auto task = duet::make_exported_task({.path = model});
  const auto trainer =
      duet::make_trainer(mode, std::move(task), {.optimizer = duet::AdamW{.lr = 2e-3}, .loop = {.max_epochs = 4}});
  trainer->add_metric<duet::Accuracy>();
  duet::DataLoader train(pictures("train", 3000), {.batch_size = 50, .shuffle = true});
  duet::DataLoader test(pictures("test", 2000), {.batch_size = 100});
  trainer->train(train);
  std::cout << "accuracy " << trainer->test(test).at("accuracy") << "\n"
            << "weights " << duet::weights_hash(trainer->weights()) << "\n";
  if (!trained.empty()) duet::write_exported_model(trained, model, trainer->weights());
}
