#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/list_data.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

// A loop of the user's own, in both modes: step() opens a run and finish() closes it, so that hooks work there as they
// do in train().

namespace duet {
namespace {

using ::testing::ElementsAre;
using testing::EveryPointHook;
using testing::loader;
using testing::mlp_batch;
using testing::Names;
using testing::recorder;
using testing::trainer_for;

class TrainerStep : public testing::InBothModes {
 protected:
  // Twelve steps in all, with a schedule over them and a checkpoint after every fifth.
  std::unique_ptr<BaseTrainer> scheduled(const std::string& work_dir) const {
    auto trainer = trainer_for(mode(), {.max_steps = 12}, "AdamW", work_dir,
                               {Linear{.start_factor = 0.25, .end = 4}, Cosine{.begin = 4}});
    trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 5, .max_keep = -1}));
    return trainer;
  }
};

// All but what belongs to a data source that the trainer knows.
void expect_same_training(const StateDict& a, const StateDict& b) {
  for (const char* part : {"model", "optimizer", "random", "hooks"}) expect_same_state(a.part(part), b.part(part));
  EXPECT_EQ(a.integer("trainer.step"), b.integer("trainer.step"));
  expect_same_tensor("loss", a.tensor("trainer.loss"), b.tensor("trainer.loss"));
}

void step_through(BaseTrainer& trainer, DataSource& data, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    std::optional<Batch> next = data.next();
    if (!next) {
      data.start_epoch(1);
      next = data.next();
    }
    trainer.step(*next);
  }
}

TEST_P(TrainerStep, SchedulesAndCheckpointsDoWhatTheyDoInTrain) {
  const TempDir folder;
  const auto trained = scheduled(folder / "train");
  trained->train(*loader(12));

  const auto stepped = scheduled(folder / "step");
  const auto data = loader(12);
  data->start_epoch(0);
  step_through(*stepped, *data, 12);
  stepped->finish();

  expect_same_training(trained->state_dict(), stepped->state_dict());
  EXPECT_DOUBLE_EQ(stepped->hyper_parameters().get(0, "lr"), trained->hyper_parameters().get(0, "lr"));
  for (const char* name : {"step-5", "step-10", "step-12"}) {
    SCOPED_TRACE(name);
    expect_same_training(CheckpointStore::load(folder / "train/checkpoints/" + name),
                         CheckpointStore::load(folder / "step/checkpoints/" + name));
  }
}

TEST_P(TrainerStep, TrainIsNotFinishedFromWithin) {
  const auto trainer = trainer_for(mode(), {.max_steps = 7});
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext&) { trainer->finish(); });
  expect_error<ConfigError>([&] { trainer->train(*loader(4)); }, {"finish() called within train()", "request_stop()"});
}

TEST_P(TrainerStep, TheFirstStepOpensTheRunAndFinishOrTrainClosesItOnce) {
  const auto trainer = trainer_for(mode(), {.max_steps = 7});
  Names calls;
  trainer->add_hook(recorder(calls));
  trainer->finish();
  EXPECT_THAT(calls, ElementsAre());
  for (int round = 0; round < 2; ++round) {
    calls.clear();
    trainer->step(mlp_batch(1));
    trainer->step(std::vector<Batch>{mlp_batch(2), mlp_batch(3)});
    EXPECT_EQ(calls.front(), "before_run");
    EXPECT_EQ(calls.at(1), "before_train");
    for (const char* once : {"before_run", "before_train"}) EXPECT_EQ(std::count(calls.begin(), calls.end(), once), 1);
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "after_train_iter"), 2);
    calls.clear();
    trainer->finish();
    trainer->finish();
    EXPECT_THAT(calls, ElementsAre("after_train", "after_run"));
  }
  trainer->step(mlp_batch(1));
  calls.clear();
  trainer->train(*loader(4));
  calls.resize(4);
  EXPECT_THAT(calls, ElementsAre("after_train", "after_run", "before_run", "before_train"));
}

TEST_P(TrainerStep, AnErrorClosesTheRunAndTheNextStepOpensAnother) {
  const auto trainer = trainer_for(mode(), {});
  Names calls;
  std::string error;
  trainer->add_hook(recorder(calls));
  trainer->add_hook(std::make_unique<EveryPointHook>("look", [&](const std::string& point, TrainContext& context) {
    if (point == "after_train") error = context.control.error;
  }));
  trainer->step(mlp_batch(1));
  calls.clear();
  expect_error<DataError>([&] { trainer->step(Batch{{"x", at::ones({0, 4})}}); }, {"weight 0"});
  EXPECT_THAT(calls, ElementsAre("on_exception", "after_train", "after_run"));
  EXPECT_THAT(error, ::testing::HasSubstr("weight 0"));
  trainer->finish();
  calls.clear();
  trainer->step(mlp_batch(2));
  EXPECT_EQ(calls.front(), "before_run");
  trainer->finish();
  EXPECT_EQ(error, "");
  EXPECT_EQ(trainer->progress().step, 2);
}

TEST_P(TrainerStep, AHookMayAskTheLoopToStop) {
  const auto trainer = trainer_for(mode(), {.max_steps = 5});
  trainer->add_hook(std::make_unique<EveryPointHook>("stop", [](const std::string& point, TrainContext& context) {
    if (point == "after_train_iter" && context.progress.step == 3) context.control.request_stop("enough");
  }));
  while (!trainer->finished()) trainer->step(mlp_batch(1));
  EXPECT_EQ(trainer->progress().step, 3);
  EXPECT_EQ(trainer->stop_reason(), "enough");
  trainer->finish();
  EXPECT_EQ(trainer->stop_reason(), "enough");
  trainer->step(mlp_batch(1));
  while (!trainer->finished()) trainer->step(mlp_batch(1));
  EXPECT_EQ(trainer->progress().step, 5);

  // The same asked of many steps at once, which go on like a loop that does not care.
  const auto many = trainer_for(mode(), {});
  many->on(HookPoint::kAfterTrainIter, [](TrainContext& context) {
    if (context.progress.step == 3) context.control.request_stop("enough");
  });
  const auto data = loader(20);
  data->start_epoch(0);
  EXPECT_EQ(many->step_many(*data, 8), 3);
  EXPECT_EQ(many->step_many(*data, 2), 2);
}

// Two epochs of 13 batches; the state and the loss after them.
template <class Epoch>
std::pair<StateDict, at::Tensor> after_two_epochs(const std::string& mode, int64_t accumulate, Epoch epoch) {
  const LoopOptions loop = {.accumulate = accumulate};
  const auto trainer = trainer_for(mode, loop, "AdamW", "", {Linear{.start_factor = 0.2, .end = 9}});
  const auto data = loader(26);
  for (const int64_t number : {0, 1}) {
    data->start_epoch(number);
    epoch(*trainer, *data);
  }
  return {trainer->state_dict(), trainer->result().loss};
}

TEST_P(TrainerStep, ManyAtOnceAreAsManyAlone) {
  for (const int64_t accumulate : {1, 2}) {
    SCOPED_TRACE(accumulate);
    const auto [alone, loss] = after_two_epochs(mode(), accumulate, [&](BaseTrainer& trainer, DataSource& data) {
      for (std::optional<Batch> next = data.next(); next; next = data.next()) {
        std::vector<Batch> batches{std::move(*next)};
        if (accumulate == 2 && (next = data.next())) batches.push_back(std::move(*next));
        trainer.step(std::move(batches));
      }
    });
    const auto [at_once, same_loss] = after_two_epochs(mode(), accumulate, [&](BaseTrainer& trainer, DataSource& data) {
      EXPECT_EQ(trainer.step_many(data, 0), 0);
      EXPECT_EQ(trainer.step_many(data, 4), 4);
      EXPECT_EQ(trainer.step_many(data, 100), (13 + accumulate - 1) / accumulate - 4);
      EXPECT_EQ(trainer.step_many(data, 100), 0);
    });
    expect_same_training(alone, at_once);
    expect_same_tensor("loss", loss, same_loss);
  }
}

// Fills the same buffers by turns.
class RefillingSource : public ForwardingSource {
 public:
  RefillingSource(DataSource& source, std::size_t buffers) : ForwardingSource(source), buffers_(buffers) {}
  std::optional<Batch> next() override {
    const std::optional<Batch> given = ForwardingSource::next();
    if (!given) return std::nullopt;
    Batch& buffer = buffers_[turn_++ % buffers_.size()];
    if (buffer.items().empty()) buffer = given->mapped([](const at::Tensor& tensor) { return at::empty_like(tensor); });
    for (const auto& [name, tensor] : given->items()) buffer[name].copy_(tensor);
    return buffer;
  }

 private:
  std::vector<Batch> buffers_;
  std::size_t turn_ = 0;
};

TEST_P(TrainerStep, ASourceMayFillItsMemoryAgain) {
  const auto after_two_epochs = [&](std::size_t buffers, bool at_once) {
    const auto trainer = trainer_for(mode(), {.max_epochs = 2, .accumulate = 3});
    const std::unique_ptr<DataSource> data = loader(26);
    RefillingSource refilling(*data, buffers);
    DataSource& source = buffers == 0 ? *data : refilling;
    if (!at_once) trainer->train(source);
    for (const int64_t epoch : {0, 1}) {
      if (!at_once) break;
      source.start_epoch(epoch);
      trainer->step_many(source, 100);
    }
    return trainer->state_dict();
  };
  for (const bool at_once : {false, true}) {
    const StateDict own = after_two_epochs(0, at_once);
    for (const std::size_t buffers : {1, 2, 5}) {
      SCOPED_TRACE(buffers);
      expect_same_training(own, after_two_epochs(buffers, at_once));
    }
  }
}

// After a step of batches with memory of their own, one of them is written to while its step still collects.
TEST_P(TrainerStep, ASourceThatFillsItsMemoryAgainLateIsAnError) {
  const auto trainer = trainer_for(mode(), {.accumulate = 3});
  const std::unique_ptr<DataSource> data = loader(26);
  std::vector<Batch> rows;
  for (std::optional<Batch> batch = data->next(); batch; batch = data->next()) rows.push_back(*batch);
  struct Late : testing::ListData {
    using ListData::ListData;
    std::optional<Batch> next() override {
      std::optional<Batch> batch = ListData::next();
      if (batch && ++turn == 5) at::Tensor(batch->items().front().second).add_(1);
      return batch;
    }
    int64_t turn = 0;
  };
  Late late({rows[0], rows[1], rows[2], rows[3], rows[3], rows[4]});
  late.start_epoch(0);
  expect_error<DataError>([&] { trainer->step_many(late, 2); }, {"filled the memory of a micro-batch again"});
}

TEST_P(TrainerStep, ALossIsTheUsers) {
  const auto trainer = trainer_for(mode(), {});
  std::vector<at::Tensor> kept, values;
  std::vector<c10::Storage> memory;
  const at::Tensor other = at::full({}, 7.0F);
  for (int n = 0; n < 60; ++n) {
    at::Tensor loss = trainer->step(mlp_batch(static_cast<uint64_t>(n))).loss;
    ASSERT_EQ(loss.dim(), 0);
    ASSERT_FALSE(loss.requires_grad());
    values.push_back(loss.clone());
    kept.push_back(n % 10 == 0 ? loss : n % 10 == 1 ? loss.view({1}) : values.back());
    memory.push_back(n % 10 == 2 ? loss.storage() : values.back().storage());
    if (n % 10 == 3) loss.requires_grad_();
    if (n % 10 == 4) loss.resize_({3});
    if (n % 10 == 5) loss.set_(other);
  }
  EXPECT_EQ(other.item<float>(), 7.0F);
  for (std::size_t n = 0; n < values.size(); ++n) {
    SCOPED_TRACE(n);
    expect_same_tensor("loss", kept[n].reshape({}), values[n]);
    EXPECT_EQ(*static_cast<const float*>(memory[n].data()), values[n].item<float>());
  }
}

DUET_IN_BOTH_MODES(TrainerStep);

}  // namespace
}  // namespace duet
