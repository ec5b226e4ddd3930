// Writes logs through the sinks and, beside them, what a reader must find. foreign/read_logs.py opens them.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "hooks/loggers/sinks.h"

namespace duet {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// JSON has no NaN: Python's float.fromhex reads these.
std::string exact(double value) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "%a", value);
  return digits;
}

Json exact(const LogValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return exact(*number);
  if (const auto* count = std::get_if<int64_t>(&value)) return exact(static_cast<double>(*count));
  return std::get<std::string>(value);
}

class ForeignLogs : public ::testing::Test {
 protected:
  void SetUp() override {
    std::error_code error;
    fs::create_directories(DUET_FOREIGN_LOGS, error);
    if (error) GTEST_SKIP() << "the programs run on a machine without " << DUET_FOREIGN_LOGS;
  }

  // An empty folder DUET_FOREIGN_LOGS/name.
  static std::string fresh(const std::string& name) {
    const fs::path folder = fs::path(DUET_FOREIGN_LOGS) / name;
    if (fs::exists(folder)) {
      std::vector<fs::path> entries;
      for (const auto& entry : fs::recursive_directory_iterator(folder)) entries.insert(entries.begin(), entry.path());
      for (const fs::path& entry : entries) fs::remove(entry);
    }
    fs::create_directories(folder);
    return folder.string();
  }

  void expect_in(const std::string& folder) const {
    std::ofstream(folder + "/expected.json") << expected.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::mt19937_64 random{20};
  Json expected;

  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random); }

  // Plain numbers and those at the edges.
  double number() {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    static constexpr double kEdges[] = {0.0,    -0.0,  kInf,  -kInf,   std::numeric_limits<double>::quiet_NaN(),
                                        1e-310, 1e-42, 1e300, 16777217};
    if (below(4) == 0) return kEdges[below(std::size(kEdges))];
    return std::ldexp(std::normal_distribution<double>()(random), static_cast<int>(below(60)) - 30);
  }

  std::string word() {
    static const char* const kParts[] = {"loss", "mIoU", "é", "→", "層", " ", ".", "_", "\"", "\\", "😀", "x"};
    std::string text = "w";
    for (int64_t i = below(6); i >= 0; --i) text += kParts[below(std::size(kParts))];
    return text;
  }
};

LogRecord train(int64_t step, double loss) {
  return {.kind = "train",
          .step = step,
          .wall_time = 1e9 + static_cast<double>(step) / 8,
          .values = {{"loss", loss}, {"epoch", int64_t{2}}, {"eta", "0:10:00"}},
          .line = "step " + std::to_string(step)};
}

// A run that stops after 150 steps with a checkpoint at 100, and goes on from there.
TEST_F(ForeignLogs, TensorBoardRun) {
  const std::string folder = fresh("tensorboard");
  const at::Tensor picture = at::randint(256, {5, 7, 3}, at::kByte);
  {
    const auto sink = tensorboard_sink(folder);
    sink->write({.kind = "start", .wall_time = 1e9, .line = "SmallCnn, \xff 60 k parameters"});
    for (const int64_t step : {50, 100, 150}) sink->write(train(step, 1.0 / static_cast<double>(step)));
    sink->write({.kind = "val",
                 .step = 100,
                 .wall_time = 1e9 + 13,
                 .values = {{"mIoU", 0.5}},
                 .images = {{"val/0007", picture}}});
    sink->write({.kind = "text", .step = 100, .values = {{"notes", "**bold**\n\n| a | b |"}}});
    sink->write({.kind = "histogram",
                 .step = 100,
                 .histograms = {{"weights/a.bias", {{-1.5, 0.1, 1.7}, {3, 1}, 0.25, 7.5}},
                                {"gradients/a.bias", {{0, 1}, {int64_t{1} << 40}, 2, 3}}}});
    sink->write({.kind = "error", .step = 151, .line = "killed"});
  }
  const auto sink = tensorboard_sink(folder);
  sink->write({.kind = "start", .step = 100, .values = {{"checkpoint", "step-100"}, {"lr", 0.1}}, .line = "goes on"});
  for (const int64_t step : {150, 200}) sink->write(train(step, 2.0 / static_cast<double>(step)));

  const auto loss = [](int64_t step, double times) {
    return Json{step, 1e9 + static_cast<double>(step) / 8, exact(times / static_cast<double>(step))};
  };
  expected["scalars"]["train/loss"] = {loss(50, 1), loss(100, 1), loss(150, 2), loss(200, 2)};
  for (const int64_t step : {50, 100, 150, 200}) {
    expected["scalars"]["train/epoch"].push_back({step, 1e9 + static_cast<double>(step) / 8, exact(2.0)});
  }
  expected["scalars"]["val/mIoU"] = Json::array({Json{100, 1e9 + 13, exact(0.5)}});
  expected["texts"]["start"] = {Json{0, "SmallCnn, \xff 60 k parameters"},
                                Json{100, "goes on\n\n- checkpoint: step-100\n- lr: 0.1\n"}};
  expected["texts"]["notes"] = Json::array({Json{100, "**bold**\n\n| a | b |"}});
  expected["texts"]["error"] = Json::array({Json{151, "killed"}});
  expected["histograms"]["weights/a.bias"] = {100, -1.5, 1.7, 4, 0.25, 7.5, {0.1, 1.7}, {3, 1}};
  expected["histograms"]["gradients/a.bias"] = {100, 0, 1, int64_t{1} << 40, 2, 3, {1}, {int64_t{1} << 40}};
  expected["image"]["name"] = "val/0007";
  expected["image"]["step"] = 100;
  expected["image"]["shape"] = {5, 7, 3};
  const at::Tensor flat = picture.contiguous();
  expected["image"]["pixels"] = std::vector<int>(flat.data_ptr<uint8_t>(), flat.data_ptr<uint8_t>() + flat.numel());
  expect_in(folder);
}

TEST_F(ForeignLogs, TensorBoardRandomRecords) {
  const std::string folder = fresh("tensorboard_random");
  const auto sink = tensorboard_sink(folder);
  const std::string kinds[] = {"train", "val", "test"};
  int64_t step = 0;
  for (int i = 0; i < 500; ++i) {
    LogRecord record{.kind = kinds[below(3)], .step = step, .wall_time = static_cast<double>(below(1'000'000)) / 16};
    for (int64_t j = below(5); j > 0; --j) record.values.emplace_back(word() + std::to_string(j), number());
    record.values.emplace_back("count", below(1 << 24));
    sink->write(record);
    for (const auto& [name, value] : record.values) {
      expected["scalars"][record.kind + "/" + name].push_back({step, record.wall_time, exact(value)});
    }
    step += below(3) == 0 ? below(int64_t{1} << 40) : below(300);
  }
  expect_in(folder);
}

TEST_F(ForeignLogs, WandbRun) {
  const std::string folder = fresh("wandb");
  const LogSinkOptions options{.folder = folder, .project = "p", .name = "é n", .id = "resumed"};
  const std::string config = R"({"lr": 0.1, "model": {"type": "A", "k": [1, null]}})";
  {
    const auto sink = wandb_sink(options, config);
    sink->write({.kind = "start", .wall_time = 1e9, .values = {{"parameters", int64_t{60'000}}, {"device", "cpu"}}});
    sink->write(train(50, 0.5));
    sink->write({.kind = "val", .step = 50, .wall_time = 1e9 + 7, .values = {{"mIoU", 0.25}}});
    sink->write({.kind = "val", .step = 1, .wall_time = 1e9 + 8, .values = {{"mDice", 0.75}}});
    sink->write(train(100, std::nan("")));
    sink->flush();
    sink->write({.kind = "stop", .step = 100, .wall_time = 1e9 + 20, .values = {{"steps", int64_t{100}}}});
  }
  {
    const auto sink = wandb_sink(options, config);
    sink->write({.kind = "start", .step = 100, .wall_time = 1e9 + 100});
    sink->write(train(150, 0.125));
    sink->write({.kind = "error", .step = 150, .wall_time = 1e9 + 130, .line = "no more data"});
  }
  {
    const auto sink = wandb_sink(options, config);
    sink->write({.kind = "start", .step = 150, .wall_time = 1e9 + 200});
    sink->write({.kind = "stop", .step = 150, .wall_time = 1e9 + 201, .values = {{"outcome", "diverged"}}});
  }
  Json& first = expected["runs"][0];
  first = {{"project", "p"}, {"name", "é n"}, {"start", 1'000'000'000}, {"exit_code", 0}, {"runtime", 20}};
  first["config"] = {
      {"lr", 0.1}, {"model", {{"type", "A"}, {"k", {1, nullptr}}}}, {"parameters", 60'000}, {"device", "cpu"}};
  first["rows"] = {{{"_step", 50},
                    {"train/loss", exact(0.5)},
                    {"train/epoch", exact(2.0)},
                    {"val/mIoU", exact(0.25)},
                    {"val/mDice", exact(0.75)},
                    {"val/step", exact(1.0)}},
                   {{"_step", 100}, {"train/loss", exact(std::nan(""))}, {"train/epoch", exact(2.0)}}};
  first["summary"] = {{"steps", 100}, {"_step", 100}};
  first["lines"] = {"step 50\n", "step 100\n"};
  Json& second = expected["runs"][1];
  second = {{"project", "p"}, {"name", "é n"}, {"start", 1'000'000'100}, {"exit_code", 1}, {"runtime", 30}};
  second["config"] = {{"lr", 0.1}, {"model", {{"type", "A"}, {"k", {1, nullptr}}}}};
  second["rows"] = Json::array({Json{{"_step", 150}, {"train/loss", exact(0.125)}, {"train/epoch", exact(2.0)}}});
  second["summary"] = {{"_step", 150}};
  second["lines"] = {"step 150\n", "no more data\n"};
  const Json config_of_second = second["config"];
  Json& diverged = expected["runs"][2];
  diverged = {{"project", "p"}, {"name", "é n"}, {"start", 1'000'000'200}, {"exit_code", 1}, {"runtime", 1}};
  diverged["config"] = config_of_second;
  diverged["rows"] = Json::array();
  diverged["summary"] = {{"outcome", "diverged"}};
  diverged["lines"] = Json::array();
  expect_in(folder);
}

// Rows and lines of every length up to three blocks, so that they end and begin everywhere in a block.
TEST_F(ForeignLogs, WandbRandomRecords) {
  const std::string folder = fresh("wandb_random");
  const auto sink = wandb_sink({.folder = folder, .id = "random"});
  sink->write({.kind = "start"});
  Json& run = expected["runs"][0];
  run = {{"project", "duet"}, {"name", ""}, {"start", 0}, {"exit_code", nullptr}, {"config", Json::object()}};
  run["rows"] = Json::array();
  run["lines"] = Json::array();
  for (int64_t step = 1; step <= 400; ++step) {
    LogRecord record{.kind = "train", .step = step};
    Json row{{"_step", step}};
    for (int64_t j = 1 + below(4); j > 0; --j) {
      record.values.emplace_back(word() + std::to_string(j), number());
      row["train/" + record.values.back().first] = exact(record.values.back().second);
    }
    record.line = std::string(static_cast<size_t>(below(step % 10 == 0 ? 100'000 : 700)), 'z');
    sink->write(record);
    sink->flush();
    run["rows"].push_back(row);
    if (!record.line.empty()) run["lines"].push_back(record.line + "\n");
  }
  expect_in(folder);
}

}  // namespace
}  // namespace duet
