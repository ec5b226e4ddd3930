#include "tests/support/toy_tasks.h"
#include <exception>
#include <torch/torch.h>
#include "optim/detail/amp.h"

namespace duet::testing {

namespace {

namespace F = torch::nn::functional;
using at::Tensor;

Tensor classes(int64_t size, int64_t count, at::Generator& generator) {
  return torch::randint(count, {size}, generator, torch::kInt64);
}

struct Mlp : torch::nn::Module {
  torch::nn::Linear a{16, 32}, b{32, 5};
  torch::nn::Dropout dropout{0.3};
  Mlp() {
    register_module("a", a);
    register_module("b", b);
    register_module("dropout", dropout);
  }
  Tensor forward(const Tensor& x) { return b(dropout(torch::gelu(a(x)))); }
};

struct Cnn : torch::nn::Module {
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 6, 3).padding(1).bias(false)},
      conv2{torch::nn::Conv2dOptions(6, 8, 3)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::Linear head{8 * 3 * 3, 5};
  Cnn() {
    register_module("conv1", conv1);
    register_module("norm", norm);
    register_module("conv2", conv2);
    register_module("head", head);
  }
  Tensor forward(Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(conv1(x))), 2);
    x = F::dropout2d(torch::relu(conv2(x)), F::Dropout2dFuncOptions().p(0.2).training(is_training()));
    return head(x.flatten(1));
  }
};

struct Attention : torch::nn::Module {
  torch::nn::Embedding tokens{11, 16}, positions{8, 16};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({16})};
  torch::nn::Linear qkv{16, 48}, project{16, 16};
  Attention() {
    register_module("tokens", tokens);
    register_module("positions", positions);
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("project", project);
  }
  Tensor forward(const Tensor& ids) {
    const int64_t n = ids.size(0), t = ids.size(1);
    Tensor x = tokens(ids) + positions(torch::arange(t, ids.options()));
    const std::vector<Tensor> parts = qkv(norm(x)).view({n, t, 3, 2, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    const Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + torch::dropout(project(y.transpose(1, 2).reshape({n, t, 16})), 0.1, is_training());
    return torch::matmul(x, tokens->weight.t());
  }
};

struct Lstm : torch::nn::Module {
  torch::nn::Embedding tokens{11, 8};
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(8, 16).num_layers(2).batch_first(true).dropout(0.2)};
  torch::nn::Linear head{16, 5};
  Lstm() {
    register_module("tokens", tokens);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  Tensor forward(const Tensor& ids) { return head(std::get<0>(lstm(tokens(ids))).select(1, -1)); }
};

struct Partial : torch::nn::Module {
  torch::nn::Linear used{16, 5}, frozen{16, 16}, unused{4, 4};
  Partial() {
    register_module("frozen", frozen);
    register_module("unused", unused);
    register_module("used", used);
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) { return used(torch::tanh(frozen(x))); }
};

template <class Module>
std::function<std::unique_ptr<Task>()> classifier() {
  return []() -> std::unique_ptr<Task> {
    return make_task(
        std::make_shared<Module>(), [](Module& module, const Batch& batch) { return module.forward(batch["input"]); },
        [](const Tensor& prediction, const Batch& batch) {
          Tensor logits = prediction, target = batch["target"];
          if (logits.dim() == 3) logits = logits.flatten(0, 1), target = target.flatten();
          Tensor loss = F::cross_entropy(logits, target);
          return StepOutput{loss, {{"error", (logits.argmax(1) != target).to(at::kFloat).mean()}}};
        });
  };
}

Batch vectors(int64_t size, uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"input", torch::randn({size, 16}, g)}, {"target", classes(size, 5, g)}};
}

Batch images(int64_t size, uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"input", torch::randn({size, 1, 10, 10}, g)}, {"target", classes(size, 5, g)}};
}

Batch sequences(int64_t size, uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"input", torch::randint(11, {size, 8}, g, torch::kInt64)},
          {"target", torch::randint(11, {size, 8}, g, torch::kInt64)}};
}

Batch sentences(int64_t size, uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"input", torch::randint(11, {size, 7}, g, torch::kInt64)}, {"target", classes(size, 5, g)}};
}

}  // namespace

ToyTask mlp_task() { return {"Mlp", classifier<Mlp>(), vectors}; }
ToyTask cnn_task() { return {"Cnn", classifier<Cnn>(), images}; }
ToyTask attention_task() { return {"Attention", classifier<Attention>(), sequences}; }
ToyTask lstm_task() { return {"Lstm", classifier<Lstm>(), sentences}; }
ToyTask partial_task() { return {"Partial", classifier<Partial>(), vectors}; }

const std::vector<ToyTask>& all_toy_tasks() {
  static const std::vector<ToyTask> tasks = {mlp_task(), cnn_task(), attention_task(), lstm_task(), partial_task()};
  return tasks;
}

bool runs_in_bfloat16(const ToyTask& task) try {
  const AutocastGuard autocast(at::kCPU, at::kBFloat16);
  task.make()->training_step(task.batch(2, 0));
  return true;
} catch (const std::exception&) {  // of oneDNN
  return false;
}

}  // namespace duet::testing
