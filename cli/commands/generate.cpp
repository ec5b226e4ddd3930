#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "data/dataset.h"

namespace duet {

namespace {

// One of the tokens, the likelier the higher its score.
int64_t draw(const at::Tensor& scores, const GenerateOptions& options, const at::Generator& generator) {
  if (options.temperature == 0) return scores.argmax().item<int64_t>();
  const int64_t kept = options.top_k > 0 ? std::min(options.top_k, scores.numel()) : scores.numel();
  const auto [best, tokens] = scores.topk(kept);  // the likeliest first
  const at::Tensor chances = ((best - best[0]) / options.temperature).softmax(0);
  return tokens[chances.multinomial(1, /*replacement=*/false, generator)[0]].item<int64_t>();
}

// The scores of what comes after `tokens`, by the model. One shape for all lengths, so that graph mode captures once:
// behind the last token stands what causal attention does not look at.
at::Tensor next_scores(BaseTrainer& trainer, const std::vector<int64_t>& tokens, int64_t context) {
  const auto length = std::min<int64_t>(std::ssize(tokens), context);
  const at::Tensor input = at::zeros({1, context}, at::kLong);
  std::copy(tokens.end() - length, tokens.end(), input.mutable_data_ptr<int64_t>());
  for (const auto& [name, output] : trainer.predict(Batch{{"input", input}}).items()) {
    if (name != "prediction" || output.dim() != 3 || output.size(1) != context) continue;
    return output[0][length - 1].to(at::kCPU, at::kDouble);
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
  const RunConfig config = load_run_config(arguments);
  if (!config.train) config.root.child("data").fail_missing("train", "add data.train: {type: Text, ...}");
  const GenerateOptions& options = arguments.generate;
  if (!std::isfinite(options.temperature))
    throw ConfigError("[generate] --temperature is no number, expected 0 to 1e6");
  if (options.prompt.empty()) throw ConfigError("[generate] --prompt is empty, expected at least one character");
  const Evaluation evaluation = open_evaluation(config, {}, arguments.checkpoint);
  const TextDataset& text = text_of(config, evaluation.run);
  std::vector<int64_t> tokens = text.encode(options.prompt);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(options.seed));
  std::cout << options.prompt;
  for (int64_t i = 0; i < options.length; ++i) {
    tokens.push_back(draw(next_scores(*evaluation.run.trainer, tokens, text.context()), options, generator));
    std::cout << text.decode({tokens.back()}) << std::flush;
  }
  std::cout << std::endl;
  write_json(arguments.json, {{"checkpoint", evaluation.checkpoint}, {"text", text.decode(tokens)}});
  return 0;
}

}  // namespace duet
