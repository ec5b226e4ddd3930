// Fine-tuning: a backbone that Python saved as TorchScript gets a new head for classes it has never seen. First the
// head alone is trained, over a frozen backbone, then everything at a lower learning rate.
//
// run:      python examples/06_finetune/export_backbone.py backbone.pt
//           build/release/examples/06_finetune graph backbone.pt     or eager: the same weights
// expected: "after the head: accuracy 0.70" and "after the whole network: accuracy 0.92", or so, from 500 pictures

#include <ctime>
#include <iostream>
#include <numeric>
#include <duet/cli/zoo/fashion_mnist.h>
#include <duet/duet.h>
#include <torch/torch.h>

constexpr int64_t kFirstClass = 5;  // the backbone knows clothes; these are shoes, bags and a shirt

struct Net : torch::nn::Module {
  explicit Net(const std::string& path) : backbone(path) { register_module("backbone", backbone.module()); }
  at::Tensor forward(const at::Tensor& image) { return head->forward(backbone.forward(image)); }

  duet::ScriptModule backbone;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 10 - kFirstClass));
};

std::shared_ptr<duet::TensorDataset> new_classes(const std::string& split, int64_t count) {
  duet::FashionMnistOptions options;
  options.split = split;
  options.limit = 3 * count;
  const duet::FashionMnist all(options);
  std::vector<int64_t> indices(all.size());
  std::iota(indices.begin(), indices.end(), 0);
  const duet::Batch pictures = all.get(indices);
  const at::Tensor rows = (pictures["target"] >= kFirstClass).nonzero().flatten().narrow(0, 0, count);
  return std::make_shared<duet::TensorDataset>(
      duet::NamedTensors{{"image", pictures["image"].index_select(0, rows)},
                         {"target", pictures["target"].index_select(0, rows) - kFirstClass}});
}

// Trains all of the network but what is frozen, and returns its accuracy on new pictures.
double train(duet::Mode mode, const std::shared_ptr<Net>& net, duet::TrainerOptions options) {
  auto task = duet::make_task(
      net, [](Net& own, const duet::Batch& batch) { return own.forward(batch["image"]); },
      [](const at::Tensor& logits, const duet::Batch& batch) {
        return torch::nn::functional::cross_entropy(logits, batch["target"]);
      });
  options.loop.max_epochs = 5;
  const auto trainer = duet::make_trainer(mode, std::move(task), options);
  trainer->add_metric<duet::Accuracy>();
  duet::DataLoader few(new_classes("train", 500), {.batch_size = 25, .shuffle = true});
  duet::DataLoader unseen(new_classes("test", 1000), {.batch_size = 250});
  trainer->train(few);
  const double accuracy = trainer->test(unseen).at("accuracy");
  std::cout << "weights " << duet::weights_hash(trainer->weights()) << "\n";
  return accuracy;
}

int main(int argc, char** argv) {
  const duet::Mode mode = duet::parse_mode(argc > 1 ? argv[1] : "graph");
  torch::set_num_threads(1);
  duet::seed_all(0);
  const auto net = std::make_shared<Net>(argc > 2 ? argv[2] : "backbone.pt");

  const std::clock_t start = std::clock();
  const double with_head = train(mode, net, {.optimizer = duet::AdamW{.lr = 1e-2}, .freeze = {"backbone"}});
  std::cout << "after the head: accuracy " << with_head << "\n";

  for (at::Tensor& parameter : net->parameters()) parameter.requires_grad_(true);
  const double with_all = train(mode, net, {.optimizer = duet::AdamW{.lr = 3e-4}});
  std::cout << "after the whole network: accuracy " << with_all << "\n"
            << "CPU seconds: " << static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC << "\n";
}
