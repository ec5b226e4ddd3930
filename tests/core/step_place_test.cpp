#include <functional>
#include <stdexcept>
#include <torch/torch.h>
#include "tests/support/expect_error.h"
#include "tests/support/list_data.h"
#include "tests/support/modes.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

namespace duet {
namespace {

using testing::batch_at;
using testing::ListData;
using testing::make_trainer;
using testing::plain_loss;
using testing::TwoLayers;
using Loss = std::function<at::Tensor(TwoLayers&, const Batch&)>;

Batch with(const std::string& name, const at::Tensor& tensor) {
  Batch batch = batch_at(0);
  batch.set(name, tensor);
  return batch;
}

Batch too_narrow() { return with("input", at::ones({8, 12})); }

class StepPlaces : public testing::InBothModes {
 protected:
  std::unique_ptr<BaseTrainer> trainer(const Loss& loss = plain_loss) {
    seed_all(1);
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.1};
    return make_trainer(GetParam(), make_task(net_ = std::make_shared<TwoLayers>(), loss), options);
  }
  std::unique_ptr<BaseTrainer> predictor() const {
    const auto forward = [](TwoLayers& net, const Batch& batch) { return net.forward(batch["input"]); };
    const auto loss = [](const at::Tensor& logits, const Batch&) { return logits.mean(); };
    return make_trainer(GetParam(), make_task(std::make_shared<TwoLayers>(), forward, loss));
  }
  // The text of what a step on `bad` throws, the sixth of its trainer; the others are good.
  template <class E>
  std::string error_of(const Batch& bad, const Loss& loss = plain_loss) {
    const auto made = trainer(loss);
    for (int64_t n = 0; n < 5; ++n) made->step(batch_at(n));
    return text_of_error<E>([&] { made->step(bad); });
  }
  template <class E, class Call>
  static std::string text_of_error(const Call& call) {
    try {
      call();
    } catch (const E& error) {
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  std::shared_ptr<TwoLayers> net_;
};

TEST_P(StepPlaces, AreNamedWithOpAndBatch) {
  EXPECT_EQ(error_of<StepError>(too_narrow()),
            "[Task] train step 5: addmm failed: mat1 and mat2 shapes cannot be multiplied (8x12 and "
            "16x8). Batch: input float32 [8, 12], target int64 [8]. Expected tensors that fit the model; correct the "
            "data's dtypes (cast) and shapes, or the model's sizes, or stop at the op with a debugger in mode eager");
}

TEST_P(StepPlaces, OfALabelOutOfRangeAreErrorsOfData) {
  EXPECT_EQ(error_of<DataError>(with("target", at::full({8}, 99, at::kLong))),
            "[Task] train step 5: nll_loss_forward failed: Target 99 is out of bounds. Batch: "
            "input float32 [8, 16], target int64 [8]. Expected labels and tokens that the model has a place for; "
            "correct the data, or the model's num_classes or vocab_size");
}

TEST_P(StepPlaces, InTheBackwardPassAreNamed) {
  struct Broken : torch::autograd::Function<Broken> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list& gradients) {
      return {gradients[0].mm(at::ones({3, 3}))};
    }
  };
  const auto made = trainer([](TwoLayers& net, const Batch& batch) {
    return torch::nn::functional::cross_entropy(Broken::apply(net.forward(batch["input"])), batch["target"]);
  });
  expect_error<StepError>([&] { made->step(batch_at(0)); }, {"train step 0: mm failed in the backward pass: mat1"});
}

// By what failed: a micro-batch, a batch of an evaluation, a prediction of a trainer within the step.
TEST_P(StepPlaces, SayWhichBatchItWas) {
  const auto made = trainer();
  expect_error<StepError>([&] { made->step({batch_at(0), too_narrow(), batch_at(1)}); },
                          {"train step 0, micro-batch 1 of 3: addmm failed", "input float32 [8, 12]"});
  ListData data({batch_at(0), batch_at(1), batch_at(2), too_narrow()});
  expect_error<StepError>([&] { made->validate(data); }, {"[Task] validation batch 3: addmm failed"});
  expect_error<StepError>([&] { made->test(data); }, {"[Task] test batch 3: addmm failed"});
  const auto inner = predictor();
  const auto outer = trainer([&inner](TwoLayers& net, const Batch& batch) {
    if (batch["input"].size(1) != 16) inner->predict(batch);
    return plain_loss(net, batch);
  });
  outer->step(batch_at(0));
  expect_error<StepError>([&] { outer->step(too_narrow()); },
                          {"[Task] prediction batch 0: addmm failed", "input float32 [8, 12]"});
}

TEST_P(StepPlaces, ThatAreNoOpsAreThrownAsTheyAreAndNoCodeRunsASecondTime) {
  int64_t runs = 0;
  const auto made = trainer([&runs](TwoLayers& net, const Batch& batch) -> at::Tensor {
    if (++runs == 3) throw std::runtime_error("my own");
    return plain_loss(net, batch);
  });
  made->step(batch_at(0));
  expect_error<StepError>([&] { made->step(too_narrow()); });
  EXPECT_EQ(text_of_error<std::runtime_error>([&] { made->step(batch_at(0)); }), "my own");
  EXPECT_EQ(runs, 3);
}

TEST_P(StepPlaces, SayThatBackwardIsTheTrainers) {
  const auto made = trainer([](TwoLayers& net, const Batch& batch) {
    const at::Tensor loss = plain_loss(net, batch);
    loss.backward({}, /*retain_graph=*/true);
    return loss;
  });
  EXPECT_EQ(text_of_error<ConfigError>([&] { made->step(batch_at(0)); }),
            "[Task] training_step has called backward(): 'a.weight' has a gradient before the trainer's own; return "
            "the loss and leave backward() to the trainer");
}

// As a whole loop of one's own in training_step would do it.
TEST_P(StepPlaces, SayThatTheGraphIsGone) {
  const auto made = trainer([](TwoLayers& net, const Batch& batch) {
    const at::Tensor loss = plain_loss(net, batch);
    loss.backward();
    net.zero_grad();
    return loss;
  });
  EXPECT_EQ(
      text_of_error<StepError>([&] { made->step(batch_at(0)); }),
      "[Task] train step 0: the graph of the loss was gone before the trainer's backward(). Expected a loss whose "
      "graph is whole; leave backward() to the trainer, and detach() what is kept from one step to the next");
}

DUET_IN_BOTH_MODES(StepPlaces);

}  // namespace
}  // namespace duet
