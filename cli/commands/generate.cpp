#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <random>
#include <vector>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/commands/evaluation.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "data/dataset.h"

namespace duet {

namespace {

// One of the tokens, in proportion to exp(logit / temperature).
class TokenSampler {
 public:
  explicit TokenSampler(const GenerateOptions& options)
      : options_(options), generator_(static_cast<uint64_t>(options.seed)) {}

  int64_t draw(const std::vector<double>& logits) {
    std::vector<int64_t> order(logits.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
    if (options_.temperature == 0) return order.front();
    if (options_.top_k > 0 && options_.top_k < std::ssize(order))
      order.resize(static_cast<std::size_t>(options_.top_k));
    std::vector<double> sums;
    double sum = 0;
    for (const int64_t token : order) {
      sums.push_back(sum += std::exp((logits[token] - logits[order.front()]) / options_.temperature));
    }
    const double drawn = static_cast<double>(generator_() >> 11) * 0x1.0p-53 * sum;
    const auto place = std::upper_bound(sums.begin(), sums.end() - 1, drawn) - sums.begin();
    return order[static_cast<std::size_t>(place)];
  }

 private:
  GenerateOptions options_;
  std::mt19937_64 generator_;
};

// What comes after `tokens`, by the model. One shape for all lengths, so that graph mode captures once: behind the
// last token stands what causal attention does not look at.
std::vector<double> next_logits(BaseTrainer& trainer, const std::vector<int64_t>& tokens, int64_t context) {
  const auto length = std::min<int64_t>(std::ssize(tokens), context);
  const at::Tensor input = at::zeros({1, context}, at::kLong);
  std::copy(tokens.end() - length, tokens.end(), input.mutable_data_ptr<int64_t>());
  for (const auto& [name, output] : trainer.predict(Batch{{"input", input}}).items()) {
    if (name != "prediction" || output.dim() != 3 || output.size(1) != context) continue;
    const at::Tensor last = output[0][length - 1].to(at::kCPU, at::kDouble).contiguous();
    return {last.const_data_ptr<double>(), last.const_data_ptr<double>() + last.numel()};
  }
  throw ConfigError(
      "[generate] the model predicts no logits [N, T, vocab_size] of texts, expected a language model; "
      "take a config with model: {type: Gpt}");
}

const TextDataset& text_of(const RunConfig& config, const Run& run) {
  if (run.train_data != nullptr) {
    if (const auto* text = dynamic_cast<const TextDataset*>(&run.train_data->source())) return *text;
  }
  config.root.child("data").fail("train", "is no text, expected type: Text, whose characters the model knows");
}

}  // namespace

int generate_command(const Arguments& arguments) {
  refuse_ranks("generate");
  const RunConfig config = load_run_config(arguments);
  check_writable(arguments.json);
  if (!config.train) config.root.child("data").fail_missing("train", "add data.train: {type: Text, ...}");
  const GenerateOptions& options = arguments.generate;
  if (!std::isfinite(options.temperature))
    throw ConfigError("[generate] --temperature is no number, expected 0 to 1e6");
  if (options.prompt.empty()) throw ConfigError("[generate] --prompt is empty, expected at least one character");
  const Evaluation evaluation = open_evaluation(config, {}, arguments.checkpoint);
  const TextDataset& text = text_of(config, evaluation.run);
  std::vector<int64_t> tokens = text.encode(options.prompt);
  TokenSampler sampler(options);
  std::cout << options.prompt;
  for (int64_t i = 0; i < options.length; ++i) {
    tokens.push_back(sampler.draw(next_logits(*evaluation.run.trainer, tokens, text.context())));
    std::cout << text.decode({tokens.back()}) << std::flush;
  }
  std::cout << std::endl;
  write_json(arguments.json, {{"checkpoint", evaluation.checkpoint}, {"text", text.decode(tokens)}});
  return 0;
}

}  // namespace duet
