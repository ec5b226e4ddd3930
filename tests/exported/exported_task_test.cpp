#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "core/model_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/exported_reference.h"
#include "tests/support/temp_dir.h"
#include "tests/support/torch_reference.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::make_trainer;
using testing::same_bits;

std::string path_of(const std::string& name) { return testing::reference_path("exported/" + name); }

class ExportedTask : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(path_of("python_op.pt2"))) GTEST_SKIP() << "there is no " << path_of("python_op.pt2");
  }

  static ExportedTaskOptions convolutions() { return {.path = path_of("convolutions/model.pt2")}; }
  static Batch images(int64_t count, int64_t side = 8) {
    return {{"x", at::randn({count, 1, side, side})}, {"target", at::arange(count).remainder(5)}};
  }
  static std::unique_ptr<BaseTrainer> trainer(ExportedTaskOptions options, const std::string& mode = "eager") {
    return make_trainer(mode, make_exported_task(options), {.optimizer = AdamW{}});
  }
  static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempDir folder_;
};

TEST_F(ExportedTask, RefusesWhatIsNoExportedModel) {
  const auto refuses = [](const std::string& path, const std::string& part) {
    SCOPED_TRACE(path);
    expect_error<ConfigError>([&] { make_exported_task({.path = path}); }, {path, part, "torch.export"});
  };
  const std::string whole = bytes_of(path_of("encoder/model.pt2"));
  refuses(folder_ / "nowhere.pt2", "there is no file");
  refuses(path_of("encoder/weights.pt"), "archive_format");
  refuses(path_of("decomposed.pt2"), "decomposed for inference");
  expect_error<ConfigError>([] { make_exported_task({.path = path_of("other_shape.pt2")}); },
                            {"'conv.bias' is Float[1], but its graph expects Float[4]"});
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, whole.size() / 3, whole.size() - 1}) {
    const std::string path = folder_.write("cut.pt2", whole.substr(0, length));
    expect_error<ConfigError>([&] { make_exported_task({.path = path}); }, {"cut.pt2"});
  }
  expect_error<ConfigError>([] { make_exported_task({.path = path_of("python_op.pt2")}); },
                            {"duet_tests.python_op.default", "make_exported_models.py:", "load the library"});
}

// Each byte of the graph's JSON counts: a damaged one ends in a message, or gives a model of other numbers.
TEST_F(ExportedTask, SurvivesDamagedBytes) {
  const std::string whole = bytes_of(path_of("branches/model.pt2"));
  for (std::size_t at = 7; at < whole.size(); at += whole.size() / 97) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x15);
    const std::string path = folder_.write("damaged.pt2", damaged);
    try {
      make_exported_task({.path = path});
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("INTERNAL ASSERT"), std::string::npos) << error.what();
    }
  }
}

TEST_F(ExportedTask, SaysWhichInputHasAnotherShape) {
  struct Case {
    Batch batch;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {images(65), {"dimension 0 of the input 'x' is 65", "3 to 64"}},
      {images(2), {"dimension 0 of the input 'x' is 2", "3 to 64"}},
      {images(4, 9), {"dimension 2 of the input 'x' is 9", "expected 8", "dynamic_shapes"}},
      {{{"x", at::randn({4, 8, 8})}, {"target", at::zeros({4}, at::kLong)}}, {"'x'", "[4, 8, 8]", "4 dimensions"}},
      {{{"a", at::randn({4, 1, 8, 8})}, {"b", at::zeros({4})}, {"target", at::zeros({4}, at::kLong)}},
       {"takes 1 tensors (x)", "got 2"}},
  };
  for (const std::string mode : {"eager", "graph"}) {
    for (const Case& c : cases) {
      const auto run = trainer(convolutions(), mode);
      expect_error<StepError>([&] { run->step(c.batch); }, c.parts);
    }
  }
}

TEST_F(ExportedTask, TakesInputsByTheirNames) {
  ExportedTaskOptions options{.path = path_of("language/model.pt2"), .loss = {.loss = "none"}};
  const Batch good = ExportedReference(path_of("language")).batches[0];
  Batch named;  // in another order
  named.set("target", good["target"]);
  named.set("batch.mask.0", good["mask"]);
  named.set("batch.tokens", good["tokens"]);
  const auto by_name = trainer(options);
  options.inputs = {"tokens", "mask"};
  const auto by_order = trainer(options);
  const at::Tensor loss = by_name->step(named).loss;
  EXPECT_TRUE(same_bits(loss, by_order->step(good).loss));
  options.inputs = {"target", "batch.mask.0", "batch.tokens"};
  EXPECT_TRUE(same_bits(loss, trainer(options)->step(named).loss));
}

TEST_F(ExportedTask, EvaluatesAnotherProgramByTheNamesInIt) {
  const Batch batch{{"zed", at::randn({6, 8})}, {"alpha", at::randn({6, 8})}, {"target", at::arange(6).remainder(5)}};
  const auto predicted = [&](const std::string& eval_path) {
    const auto run = trainer({.path = path_of("Pair.pt2"), .eval_path = eval_path});
    for (int step = 0; step < 3; ++step) run->step(batch);
    return run->predict(batch)["prediction"];
  };
  EXPECT_TRUE(same_bits(predicted(path_of("Turned.pt2")), predicted("")));
  const auto refuses = [&](const std::string& name, const std::vector<std::string>& parts) {
    SCOPED_TRACE(name);
    expect_error<ConfigError>([&] { predicted(path_of(name)); }, parts);
  };
  refuses("Renamed.pt2", {"takes alpha, other", "zed, alpha", "the same names"});
  refuses("Wrapped.pt2", {"'model.first.weight' is none of the model that is trained"});
  refuses("More.pt2", {"'scale' is none of the model that is trained"});
}

TEST_F(ExportedTask, PredictsNoLoss) {
  const auto run = trainer({.path = path_of("LossAlone.pt2"), .loss = {.loss = "none"}});
  const Batch batch{{"zed", at::randn({6, 8})}, {"target", at::arange(6).remainder(5)}};
  run->step(batch);
  expect_error<ConfigError>([&] { run->predict(batch); }, {"LossAlone.pt2", "gives its loss alone"});
}

TEST_F(ExportedTask, NamesThePythonLineOfAnOpThatFails) {
  Batch batch = images(4);
  batch.set("x", batch["x"].to(at::kDouble));
  expect_error<StepError>([&] { trainer(convolutions())->step(batch); },
                          {"convolutions/model.pt2", "conv2d", "make_exported_models.py:", "in forward"});
}

TEST_F(ExportedTask, TellsTheModesApart) {
  const auto warnings_of = [](ExportedTaskOptions options) {
    ::testing::internal::CaptureStderr();
    const auto run = trainer(std::move(options));
    run->step(images(4));
    run->step(images(4));
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warned = warnings_of({.path = path_of("convolutions/eval.pt2")}),
                    mark = "exported in evaluation mode";
  EXPECT_NE(warned.find(mark), std::string::npos) << warned;
  EXPECT_EQ(warned.find(mark), warned.rfind(mark)) << "once";
  EXPECT_EQ(warnings_of(convolutions()).find(mark), std::string::npos);

  const std::vector<std::string> ops = ExportedModule(path_of("convolutions/model.pt2")).training_ops();
  const auto has = [&](const std::string& part) {
    return std::any_of(ops.begin(), ops.end(), [&](const std::string& op) { return op.find(part) == 0; });
  };
  EXPECT_TRUE(has("aten.batch_norm.default in norm (make_exported_models.py:")) << join(ops);
  EXPECT_TRUE(has("aten.dropout.default in drop"));
  EXPECT_TRUE(has("aten.add_.Tensor in norm"));
  EXPECT_TRUE(has("aten.add_.Tensor (make_exported_models.py:"));
  EXPECT_EQ(ops.size(), 6U);
}

// Autocast gives other types than those that the export noted.
TEST_F(ExportedTask, TrainsUnderAutocast) {
  ExportedTaskOptions options{.path = path_of("oddities/model.pt2"), .loss = {.loss = "none"}};
  for (const std::string mode : {"eager", "graph"}) {
    const auto run = make_trainer(mode, make_exported_task(options), {.optimizer = AdamW{}, .amp = at::kBFloat16});
    for (int step = 0; step < 4; ++step) EXPECT_TRUE(std::isfinite(run->step(images(4)).loss.item<float>()));
  }
}

// A layer that is held in evaluation mode evaluates while the others train.
TEST_F(ExportedTask, HoldsLayersInEvaluationMode) {
  const auto task = make_exported_task(convolutions());
  task->hold_in_evaluation({"norm", "last"});
  task->train(true);
  const auto buffers = task->named_buffers();
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : buffers) before[name] = tensor.clone();
  task->training_step(images(4));
  for (const auto& [name, tensor] : buffers) EXPECT_EQ(same_bits(tensor, before[name]), name != "seen") << name;
}

TEST_F(ExportedTask, KnowsItsLayers) {
  const auto task = make_exported_task(convolutions());
  std::map<std::string, ModuleInfo> modules;
  for (const ModuleInfo& info : task->modules()) modules[info.path] = info;
  EXPECT_EQ(modules[""].type, "Convolutions");
  EXPECT_EQ(modules["norm"].kind, ModuleKind::kNorm);
  EXPECT_EQ(modules["conv"].kind, ModuleKind::kDepthwiseConv2d);  // of one channel
  EXPECT_EQ(modules["depthwise"].kind, ModuleKind::kDepthwiseConv2d);
  EXPECT_EQ(modules["head"].type, "Linear");
  for (const ModuleInfo& info : make_exported_task({.path = path_of("encoder/model.pt2")})->modules()) {
    if (info.path == "layers.layers.1") EXPECT_EQ(info.type, "TransformerEncoderLayer");
  }
  EXPECT_EQ(make_exported_task({.path = path_of("language/model.pt2")})->tied_names(),
            (std::map<std::string, std::string>{{"head.weight", "embed.weight"}}));
}

struct Net : torch::nn::Module {
  explicit Net(const std::string& path) : backbone(path) { register_module("backbone", backbone.module()); }
  at::Tensor forward(const at::Tensor& x) { return head->forward(backbone.forward(x)); }

  ExportedModule backbone;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(5, 5));
};

TEST_F(ExportedTask, IsAPartOfAModel) {
  std::vector<StateDict> states;
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    const auto net = std::make_shared<Net>(path_of("convolutions/model.pt2"));
    const auto run = make_trainer(mode,
                                  make_task(
                                      net, [](Net& net, const Batch& batch) { return net.forward(batch["x"]); },
                                      [](const at::Tensor& logits, const Batch& batch) {
                                        return at::cross_entropy_loss(logits, batch["target"]);
                                      }),
                                  {.optimizer = AdamW{}}, {.fallback = Fallback::kStrict});
    for (int step = 0; step < 6; ++step) {
      seed_all(static_cast<uint64_t>(step));
      run->step(images(4 + step % 2));
    }
    states.push_back(run->state_dict());
    EXPECT_TRUE(run->weights().has("backbone.norm.running_mean"));
  }
  testing::expect_same_bits(states[0], states[1]);
}

TEST_F(ExportedTask, RefusesToWriteOtherModels) {
  StateDict other;
  other.set("head.weight", at::zeros({2, 2}));
  const std::string path = folder_ / "out.pt2";
  expect_error<DataError>([&] { write_exported_model(path, convolutions().path, other); }, {"head.weight", "[2, 2]"});
  StateDict nothing;
  nothing.set("step", at::zeros({}));
  expect_error<DataError>([&] { write_exported_model(path, convolutions().path, nothing); }, {"have no 'conv.weight'"});
  EXPECT_EQ(make_exported_task(convolutions())->write_model(folder_ / "out", nothing), "");
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace duet
