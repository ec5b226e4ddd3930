#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include "base/device.h"
#include "base/error.h"
#include "core/model_file.h"
#include "tests/script/script_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/temp_dir.h"
#include "tests/support/torch_reference.h"

namespace duet {
namespace {

using testing::adamw;
using testing::expect_replayed;
using testing::expect_same_bits;
using testing::make_trainer;
using testing::missing;
using testing::modes;
using testing::same_bits;
using testing::strict;

// Modules that are compiled here.

class ScriptTask : public ::testing::Test {
 protected:
  // A file with a module that has the parameter `weight` [3, 4] and the given methods.
  std::string file_of(const std::string& methods) {
    torch::jit::Module module("__torch__.Model");
    module.register_parameter("weight", at::linspace(-1, 1, 12).view({3, 4}).clone().set_requires_grad(true),
                              /*is_buffer=*/false);
    module.register_parameter("seen", at::zeros({3}), /*is_buffer=*/true);
    module.register_attribute("calls", c10::IntType::get(), int64_t{0});
    module.register_attribute("training", c10::BoolType::get(), true);
    module.define(methods);
    const std::string path = folder_ / "model.pt";
    module.save(path);
    return path;
  }

  std::string linear() { return file_of("def forward(self, x):\n  return x.matmul(self.weight.t())\n"); }

  static Batch batch(int64_t n = 0) {
    const at::Tensor x = (at::arange(20, at::kFloat) * 0.37 + static_cast<double>(n)).sin().view({5, 4});
    return {{"x", x}, {"target", at::arange(5).remainder(3)}};
  }

  // What a step on `batch` throws in either mode names the file and each of `parts`.
  template <class E>
  static void expect_step_error(ScriptTaskOptions options, const Batch& batch, std::vector<std::string> parts) {
    parts.push_back(options.path);
    for (const std::string& mode : modes()) {
      SCOPED_TRACE(mode);
      const auto trainer = make_trainer(mode, make_script_task(options), adamw());
      expect_error<E>([&] { trainer->step(batch); }, parts);
      const StateDict before = make_trainer(mode, make_script_task(options), adamw())->weights();
      expect_same_bits(before, trainer->weights());
    }
  }

  // Losses and weights of 12 steps in both modes, which must be the same; returns the graph trainer.
  std::unique_ptr<BaseTrainer> expect_parity(const ScriptTaskOptions& options, const GraphOptions& graph = {}) {
    const auto eager = make_trainer("eager", make_script_task(options), adamw());
    auto captured = make_trainer("graph", make_script_task(options), adamw(), graph);
    const auto losses = [](BaseTrainer& trainer) {
      seed_all(3);
      std::vector<double> values;
      for (int64_t n = 0; n < 12; ++n) values.push_back(trainer.step(batch(n)).loss.item<double>());
      return values;
    };
    EXPECT_EQ(losses(*eager), losses(*captured));
    expect_same_bits(eager->weights(), captured->weights());
    return captured;
  }

  TempDir folder_;
};

TEST_F(ScriptTask, RefusesWhatIsNoTorchScriptFile) {
  const auto refuses = [](const std::string& path) {
    SCOPED_TRACE(path);
    expect_error<ConfigError>([&] { make_script_task({.path = path}); }, {"[ScriptTask]", path, "torch.jit.save"});
  };
  refuses(folder_ / "nowhere.pt");
  refuses(folder_.path().string());
  refuses(folder_.write("empty.pt", ""));
  refuses(folder_.write("pickle.pt", "\x80\x02}q\x01."));

  std::ifstream file(linear(), std::ios::binary);
  const std::string good(std::istreambuf_iterator<char>(file), {});
  const std::size_t size = good.size();
  for (const std::size_t length : {std::size_t{1}, size / 4, size / 2, size - 30, size - 1}) {
    refuses(folder_.write("cut" + std::to_string(length) + ".pt", good.substr(0, length)));
  }
}

// One target of five counts in the first micro-batch, all in the second: the mean is one over six.
TEST_F(ScriptTask, IgnoredTargetsAreNotInTheMeanOfAWindow) {
  const std::string path = linear();
  Batch few = batch();
  at::Tensor targets = few["target"].clone();
  targets.narrow(0, 1, 4).fill_(-100);
  few.set("target", targets);
  const at::Tensor weight = at::linspace(-1, 1, 12).view({3, 4});
  const at::Tensor logits = at::cat({few["x"], batch(1)["x"]}).matmul(weight.t());
  const double wanted = at::cross_entropy_loss(logits, at::cat({targets, batch(1)["target"]})).item<double>();
  for (const std::string& mode : modes()) {
    const auto trainer = make_trainer(mode, make_script_task({.path = path}), adamw());
    EXPECT_NEAR(trainer->step({few, batch(1)}).loss.item<double>(), wanted, 1e-6) << mode;
  }
}

TEST_F(ScriptTask, RefusesAModuleWithoutForwardAndAnUnknownLoss) {
  const std::string path = file_of("def scores(self, x):\n  return x\n");
  expect_error<ConfigError>([&] { make_script_task({.path = path}); }, {path, "forward"});
  expect_error<ConfigError>([&] { make_script_task({.path = linear(), .loss = {.loss = "hinge"}}); },
                            {"hinge", "cross_entropy"});
}

TEST_F(ScriptTask, NamesTheFileWhenABatchDoesNotFit) {
  const std::string path = linear();
  const at::Tensor target = at::zeros({5}, at::kLong);
  Batch more = batch();
  more.set("mask", at::ones({5}));
  expect_step_error<ConfigError>({.path = path}, more, {"forward"});
  expect_step_error<ConfigError>({.path = path}, {{"target", target}}, {"forward"});
  expect_step_error<StepError>({.path = path}, {{"x", at::ones({5, 7})}, {"target", target}},
                               {"[Task] train step 0: ", "mat1 and mat2 shapes cannot be multiplied (5x7 and 4x3), at ",
                                "Batch: x float32 [5, 7], target int64 [5]"});
  expect_step_error<DataError>({.path = path, .inputs = {"image"}}, batch(), {"image", "x, target"});
  expect_step_error<DataError>({.path = path, .inputs = {"x"}, .target = "label"}, batch(), {"label", "x, target"});
  expect_step_error<ConfigError>({.path = path, .loss = {.loss = "mse"}}, batch(), {"[5, 3]", "[5]", "mse"});
  expect_step_error<ConfigError>({.path = path}, {{"x", batch()["x"]}, {"target", at::zeros({4}, at::kLong)}},
                                 {"[5, 3]", "[4]", "cross_entropy"});
}

TEST_F(ScriptTask, NamesTheFileWhenTheOutputIsNoTensor) {
  for (const auto& [result, type] :
       {std::pair("return 3", "Int"), {"return {\"out\": x}", "Dict"}, {"y = x", "None"}, {"return (2, x)", "Int"}}) {
    const std::string path = file_of(std::string("def forward(self, x):\n  ") + result + "\n");
    expect_step_error<ConfigError>({.path = path}, batch(), {type, "expected a tensor"});
  }
}

TEST_F(ScriptTask, TakesTheLossesOfTheModels) {
  const std::string path = linear();
  const at::Tensor logits = batch()["x"].matmul(at::linspace(-1, 1, 12).view({3, 4}).t());
  Batch numbers = batch();
  numbers.set("target", (logits + 0.5).sigmoid());
  const std::vector<std::pair<LossOptions, Batch>> cases = {
      {{.label_smoothing = 0.1, .class_weights = {1, 2, 3}}, batch()},
      {{.loss = "focal"}, batch()},
      {{.loss = "bce"}, numbers}};
  for (const auto& [loss, data] : cases) {
    SCOPED_TRACE(loss.loss);
    const double wanted = loss_of(loss, logits, data["target"]).item<double>();
    std::vector<StateDict> weights;
    for (const std::string& mode : modes()) {
      const auto trainer = make_trainer(mode, make_script_task({.path = path, .loss = loss}), adamw(), strict());
      EXPECT_NEAR(trainer->step(data).loss.item<double>(), wanted, 1e-6) << mode;
      for (int step = 0; step < 8; ++step) trainer->step(data);
      weights.push_back(trainer->weights());
    }
    expect_same_bits(weights[0], weights[1]);
  }
}

// Of a language model [N, T, C].
TEST_F(ScriptTask, LeavesOutTheClassThatDoesNotCount) {
  const std::string tokens = file_of("def forward(self, x):\n  return x.matmul(self.weight.t())\n");
  const at::Tensor x = (at::arange(24, at::kFloat) * 0.37).sin().view({2, 3, 4});
  const at::Tensor target = at::tensor({0, 1, 255, 2, 255, 1}, at::kLong).view({2, 3});
  const at::Tensor logits = x.matmul(at::linspace(-1, 1, 12).view({3, 4}).t());
  const double wanted = loss_of({}, logits.flatten(0, 1), target.flatten(), 255).item<double>();
  const auto trainer = make_trainer("eager", make_script_task({.path = tokens, .ignore_index = 255}), adamw());
  EXPECT_NEAR(trainer->step({{"x", x}, {"target", target}}).loss.item<double>(), wanted, 1e-6);
}

TEST_F(ScriptTask, NamesTheFileWhenTheScriptRaises) {
  const std::string path = file_of("def forward(self, x):\n  assert x.size(0) == 6, \"six rows\"\n  return x\n");
  expect_step_error<StepError>({.path = path}, batch(),
                               {"[Task] train step 0: ", "AssertionError: six rows, at ", ":2 in forward"});
}

TEST_F(ScriptTask, ForwardMayReturnTheLoss) {
  const std::string path = file_of(
      "def forward(self, x, target):\n  return -torch.log_softmax(x.matmul(self.weight.t()), 1)"
      ".gather(1, target.unsqueeze(1)).mean()\n");
  const auto trainer = expect_parity({.path = path, .loss = {.loss = "none"}}, strict());
  expect_replayed(*trainer, 9);
  const at::Tensor weight = trainer->weights().tensor("weight");
  const auto plain = expect_parity({.path = linear()}, strict());
  EXPECT_TRUE(at::allclose(weight, plain->weights().tensor("weight"), 1e-5, 1e-6));
}

TEST_F(ScriptTask, GivesArgumentsTheTensorsOfTheirNames) {
  const std::string path = file_of("def forward(self, scale, x):\n  return x.matmul(self.weight.t()) * scale\n");
  Batch named = batch();
  named.set("scale", at::full({1}, 2.0F));
  const auto trainer = make_trainer("eager", make_script_task({.path = path}));
  const auto plain = make_trainer("eager", make_script_task({.path = linear()}));
  EXPECT_TRUE(at::equal(trainer->predict(named)["prediction"], plain->predict(batch())["prediction"] * 2));
  Batch misspelt = batch();
  misspelt.set("scal", at::full({1}, 2.0F));
  expect_error<ConfigError>([&] { trainer->predict(misspelt); },
                            {"inputs x, scal", "takes scale, x", "'x' would be passed as another", "model.inputs"});
}

// What a script does on the host, after y = x.matmul(self.weight.t()): no replay may go on with an old value.
struct HostCode {
  const char* name;
  const char* reason;  // why it runs eager; empty: it is replayed
  const char* body;
};

constexpr HostCode kHostCode[] = {
    {"the first of a tuple", "", "  return (y, y.sum())\n"},
    {"a branch on a shape", "",
     "  for i in range(x.size(0)):\n    if i % 2 == 0:\n      y = y + 0.1 * x[i].sum()\n  return y\n"},
    // As torch.jit.trace writes down sizes: as tensors, with arithmetic, read back.
    {"arithmetic on traced sizes", "",
     "  n = torch.tensor(x.size(0))\n  half = torch.floor_divide(n, 2)\n"
     "  return y + x[:int(half)].sum() * float(n / 2) * half\n"},
    {"tensors as indices", "", "  k = (x[:, 0] > 0).long()\n  return y[k].mul(y) + y[:, k[0:2]].mean()\n"},
    {"answers of the batch", "",
     "  if bool((x[:, 0] > -0.5).all()):\n    y = torch.tanh(y)\n"
     "  for i in range(int(x[0, 0] > 0) + 1):\n    y = y + 0.5\n  return y\n"},
    {"a branch on a value", "aten::_local_scalar_dense reads a value back",
     "  if bool(x.sum() > 0):\n    y = y * 2.0\n  return y\n"},
    {"a size that was overwritten with data", "aten::_local_scalar_dense reads a value back",
     "  n = torch.tensor(x.size(0))\n  n.copy_(x.sum().abs() + 1)\n  return y * int(n)\n"},
    {"a buffer that is replaced", "'seen' is replaced",
     "  self.seen = self.seen * 0.9 + y.detach().mean(0) * 0.1\n  return y\n"},
    {"a counter", "host code that changed", "  self.calls += 1\n  return y * (1.0 + 0.1 * self.calls)\n"}};

TEST_F(ScriptTask, ItsHostCodeIsNeverReplayedWithAnOldValue) {
  for (const HostCode& code : kHostCode) {
    SCOPED_TRACE(code.name);
    const std::string path =
        file_of(std::string("def forward(self, x):\n  y = x.matmul(self.weight.t())\n") + code.body);
    const auto trainer = expect_parity({.path = path}, {.verify_interval = 1});
    const bool replayed = code.reason == std::string();
    if (replayed) expect_replayed(*trainer, 1);
    const auto& graph = dynamic_cast<GraphTrainer&>(*trainer);
    expect_contains(graph.report().at(0).reason, {code.reason});
    EXPECT_EQ(graph.replays() > 0, replayed);
  }
}

TEST_F(ScriptTask, ForkedWorkKeepsItsOrder) {
  const std::string path = testing::reference_path("script/forks.pt");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << missing(path);
  expect_replayed(*expect_parity({.path = path}, strict()), 9);
}

TEST_F(ScriptTask, AutocastInTheScriptHolds) {
  const std::string path = testing::reference_path("script/autocast.pt");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << missing(path);
  const auto trainer = expect_parity({.path = path}, strict());
  expect_replayed(*trainer, 9);
  const at::Tensor output = trainer->task().predict(batch()).at(0).second;
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(output, output.to(at::kBFloat16).to(at::kFloat)));
}

// As torch.jit.trace leaves what it met in one mode; others follow train().
TEST_F(ScriptTask, WarnsOfOpsThatTheModeDoesNotReach) {
  for (const auto& [body, warned] :
       {std::pair<std::string, std::string>("torch.dropout(torch.feature_dropout(x, 0.1, True), 0.5, True)",
                                            "random numbers in evaluation too: aten::feature_dropout, aten::dropout"),
        {"torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)",
         "by the batch in evaluation too: aten::batch_norm"},
        {"torch.dropout(x, 0.5, False)", "traced in evaluation mode, which you may mean: aten::dropout"},
        {"torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False) if self.training else x", ""},
        {"torch.dropout(x, 0.5, self.training)", ""},
        {"torch.dropout(x, 0.0, True)", ""},
        {"torch.rand_like(x) if self.training else x", ""}}) {
    SCOPED_TRACE(body);
    const std::string path =
        file_of(std::string("def forward(self, x):\n  y = ") + body + "\n  return y.matmul(self.weight.t())\n");
    const std::string log = testing::stderr_of([&] {
      const auto task = make_script_task({.path = path});
      for (int64_t n = 0; n < 3; ++n) task->predict(batch(n));
      task->train(true);
      for (int64_t n = 0; n < 3; ++n) task->training_step(batch(n));
    });
    if (warned.empty()) {
      EXPECT_EQ(log, "");
    } else {
      expect_contains(log, {"[ScriptTask]", "model.pt", warned});
      EXPECT_EQ(log.find("[ScriptTask]"), log.rfind("[ScriptTask]")) << "once: " << log;
    }
  }
}

}  // namespace
}  // namespace duet
