#include "spirals.h"
#include <duet/cli/registry.h>
#include <duet/duet.h>
#include <torch/torch.h>

const duet::OptionFields& SpiralsOptions::fields() {
  using O = SpiralsOptions;
  return duet::described<O>("Spirals", [](const auto& add) {
    add("size", &O::size, "points").in(duet::at_least(1));
    add("arms", &O::arms, "of the spiral").in(duet::between(2, 16));
    add("noise", &O::noise, "standard deviation of a point from its arm").in(duet::at_least(0));
    add("seed", &O::seed, "of the points").in(duet::at_least(0));
  });
}

Spirals::Spirals(const SpiralsOptions& options) {
  duet::check_options(options);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  target_ = torch::arange(options.size) % options.arms;
  const at::Tensor radius = torch::rand(options.size, generator).sqrt();
  const at::Tensor angle = 2 * M_PI * (target_.to(torch::kFloat) / options.arms + radius);
  point_ = (radius * torch::stack({angle.cos(), angle.sin()})).t() +
           options.noise * torch::randn({options.size, 2}, generator);
}

duet::Batch Spirals::get(const std::vector<int64_t>& indices) const {
  check_indices("Spirals", indices, size());
  const at::Tensor rows = torch::tensor(indices);
  return {{"point", point_.index_select(0, rows)}, {"target", target_.index_select(0, rows)}};
}

const duet::OptionFields& SpiralNetOptions::fields() {
  using O = SpiralNetOptions;
  return duet::described<O>("SpiralNet", [](const auto& add) {
    add("hidden", &O::hidden, "width of the hidden layers").in(duet::at_least(1));
    add("arms", &O::arms, "of the spiral, the width of the output").in(duet::between(2, 16));
  });
}

namespace {

struct SpiralNet : torch::nn::Module {
  explicit SpiralNet(const SpiralNetOptions& options)
      : first(register_module("first", torch::nn::Linear(2, options.hidden))),
        second(register_module("second", torch::nn::Linear(options.hidden, options.hidden))),
        head(register_module("head", torch::nn::Linear(options.hidden, options.arms))) {}
  at::Tensor forward(const at::Tensor& point) { return head(torch::relu(second(torch::relu(first(point))))); }

  torch::nn::Linear first, second, head;
};

std::unique_ptr<duet::Task> make_spiral_net(const duet::ConfigNode& node) {
  return duet::make_task(
      std::make_shared<SpiralNet>(duet::read_all_options<SpiralNetOptions>(node)),
      [](SpiralNet& net, const duet::Batch& batch) { return net.forward(batch["point"]); },
      [](const at::Tensor& logits, const duet::Batch& batch) {
        return torch::nn::functional::cross_entropy(logits, batch["target"]);
      });
}

}  // namespace

void register_types() {
  duet::register_dataset(
      "Spirals",
      [](duet::ConfigNode& node) { return std::make_shared<Spirals>(duet::read_all_options<SpiralsOptions>(node)); },
      duet::AnyOptions(SpiralsOptions()));
  duet::register_model(
      "SpiralNet", [](duet::ConfigNode& node, duet::ModelContext&) { return make_spiral_net(node); },
      duet::AnyOptions(SpiralNetOptions()));
}
