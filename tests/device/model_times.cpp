// duet_device_times MODEL eager|graph [RESNET50.pt]: times steps of a model on the GPU; model_times.py drives it.
//
// Reads numbers of steps, one a line, and answers each with a line of JSON: microseconds per step, calls that wait for
// the device per step, and the most memory reserved so far. The batch lies in pinned memory, as a loader gives it;
// nothing is checked or logged. `duet_device_times` alone lists the models.

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>
#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include "base/detail/stopwatch.h"
#include "base/device.h"
#include "base/error.h"
#include "benchmarks/cases.h"
#include "cli/zoo/gpt.h"
#include "core/model_file.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "tests/device/on_device.h"
#include "tests/device/waits.h"

namespace duet {
namespace {

struct Model {
  benchmarks::Case what;
  std::optional<at::ScalarType> amp{};
};

Batch tokens(int64_t vocabulary, int64_t samples, int64_t length) {
  return {{"input", at::randint(vocabulary, {samples, length}, at::kLong)},
          {"target", at::randint(vocabulary, {samples, length}, at::kLong)}};
}

std::unique_ptr<Task> gpt(int64_t vocabulary, int64_t layers, int64_t heads, int64_t width, int64_t context) {
  return make_gpt({.vocab_size = vocabulary,
                   .n_layer = layers,
                   .n_head = heads,
                   .n_embd = width,
                   .context = context,
                   .dropout = 0});
}

Batch photos(int64_t samples) {
  return {{"image", at::randn({samples, 3, 224, 224})}, {"target", at::randint(1000, {samples}, at::kLong)}};
}

// Those of benchmarks/cases.cpp, and larger ones; model_times.py names those that it measures.
std::vector<Model> models(const std::string& resnet) {
  std::vector<Model> all;
  for (benchmarks::Case& known : benchmarks::cases()) all.push_back({std::move(known)});
  all.push_back({{"GPT d384 L6, 16x256", [] { return gpt(65, 6, 6, 384, 256); }, [] { return tokens(65, 16, 256); }}});
  all.push_back({{"GPT-2 124 M, 8x1024, bf16", [] { return gpt(50257, 12, 12, 768, 1024); },
                  [] { return tokens(50257, 8, 1024); }},
                 at::kBFloat16});
  all.push_back({{"ResNet-50 (TorchScript), 32x224x224", [resnet] { return make_script_task({.path = resnet}); },
                  [] { return photos(32); }}});
  return all;
}

void time_steps(BaseTrainer& trainer, const Batch& batch, int64_t steps) {
  c10::cuda::device_synchronize();
  const int64_t waits = testing::waits();
  const Stopwatch time;
  for (int64_t n = 0; n < steps; ++n) trainer.step(batch);
  const auto waited = static_cast<double>(testing::waits() - waits);
  c10::cuda::device_synchronize();
  const auto count = static_cast<double>(steps);
  const auto bytes = c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].peak;
  std::printf(R"({"us": %.2f, "waits": %.3f, "mib": %.0f})"
              "\n",
              1e6 * time.seconds() / count, waited / count, static_cast<double>(bytes) / (1 << 20));
  std::fflush(stdout);
}

constexpr int kStepsBefore = 12;  // the first replay is among them

void serve(const Model& model, Mode mode) {
  seed_all(0);
  at::globalContext().setUserEnabledCuDNN(!testing::is_rehearsal());
  TrainerOptions options;
  options.device = "cuda";
  options.optimizer = AdamW{.lr = 1e-4};
  options.amp = model.amp;
  const auto trainer = make_trainer(mode, model.what.task(), options, testing::unchecked());
  const Batch batch = model.what.batch().mapped([](const at::Tensor& tensor) { return tensor.pin_memory(); });
  for (int n = 0; n < kStepsBefore; ++n) trainer->step(batch);
  if (const auto* graph = dynamic_cast<const GraphTrainer*>(trainer.get())) {
    const SignatureReport report = graph->report().back();
    require<GraphError>(report.replays > 0, "[Times] the step is not replayed: " + report.reason);
  }
  for (std::string line; std::getline(std::cin, line);) time_steps(*trainer, batch, std::stoll(line));
}

int run(int argc, char** argv) {
  const std::vector<Model> all = models(argc > 3 ? argv[3] : "");
  if (argc < 3) {
    for (const Model& model : all) std::cout << model.what.name << "\n";
    return 0;
  }
  const auto model = std::find_if(all.begin(), all.end(), [&](const Model& one) { return one.what.name == argv[1]; });
  require<ConfigError>(model != all.end(), std::string("[Times] found no model '") + argv[1] + "'; see the list");
  serve(*model, parse_mode(argv[2]));
  return 0;
}

}  // namespace
}  // namespace duet

int main(int argc, char** argv) {
  try {
    return duet::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
