#include "lstm.h"
#include <tuple>
#include <duet/duet.h>
#include <torch/torch.h>

const duet::OptionFields& LstmOptions::fields() {
  using O = LstmOptions;
  return duet::described<O>("Lstm", [](const auto& add) {
    add.about("A language model: reads input int64 [N, T], target int64 [N, T]; predicts logits [N, T, vocab_size].");
    add("vocab_size", &O::vocab_size, "tokens").in(duet::between(1, 1 << 30));
    add("width", &O::width, "width of embedding and state").in(duet::between(1, 1 << 30));
    add("num_layers", &O::num_layers, "layers, one upon the other").in(duet::between(1, 1 << 30));
    add("dropout", &O::dropout, "share of values that is dropped").in(duet::up_to_below(0, 1));
  });
}

namespace {

class LstmModel : public torch::nn::Module {
 public:
  explicit LstmModel(const LstmOptions& options) {
    tokens_ = register_module("tokens", torch::nn::Embedding(options.vocab_size, options.width));
    const auto layers = torch::nn::LSTMOptions(options.width, options.width).num_layers(options.num_layers);
    lstm_ = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(layers).batch_first(true).dropout(
                                        options.num_layers > 1 ? options.dropout : 0.0)));
    dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
    head_ = register_module("head", torch::nn::Linear(options.width, options.vocab_size));
  }

  at::Tensor forward(const at::Tensor& input) {
    if (input.dim() != 2) {
      throw duet::ConfigError(c10::str("[Lstm] found 'input' of shape ", input.sizes(), ", expected tokens [N, T]"));
    }
    const at::Tensor embedded = dropout_->forward(tokens_->forward(input));
    return head_->forward(dropout_->forward(std::get<0>(lstm_->forward(embedded))));
  }

 private:
  torch::nn::Embedding tokens_{nullptr};
  torch::nn::LSTM lstm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear head_{nullptr};
};

}  // namespace

std::unique_ptr<duet::Task> make_lstm(const LstmOptions& options) {
  duet::check_options(options);
  const auto forward = [](LstmModel& model, const duet::Batch& batch) { return model.forward(batch["input"]); };
  const auto loss = [](const at::Tensor& logits, const duet::Batch& batch) {
    return at::cross_entropy_loss(logits.flatten(0, 1), batch["target"].flatten());
  };
  const auto tokens = [](const duet::Batch& batch) {
    return static_cast<double>(duet::counted_targets(batch["target"]));
  };
  return duet::make_task(std::make_shared<LstmModel>(options), forward, loss, tokens);
}
