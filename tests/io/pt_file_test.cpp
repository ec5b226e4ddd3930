#include "io/pt_file.h"
#include <filesystem>
#include <functional>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/pt_files.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

at::Tensor counting(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::arange(c10::multiply_integers(shape)).view(shape).to(type);
}

TEST(PtFile, GivesBackEveryTypeShapeAndValue) {
  const TempDir folder;
  const StateDict state = writable_state();
  write_pt(folder / "a.pt", state);
  const PtFile file = read_pt(folder / "a.pt");
  expect_same_state(state, file.state);
  EXPECT_TRUE(file.groups.empty());
  EXPECT_TRUE(file.passed_over.empty());
}

TEST(PtFile, KeepsSharedMemoryShared) {
  const TempDir folder;
  const at::Tensor shared = at::zeros({1000});
  StateDict state;
  state.set("embedding", shared);
  state.set("head", shared.view({10, 100}));
  state.set("other", shared.clone());
  write_pt(folder / "a.pt", state);
  EXPECT_LT(std::filesystem::file_size(folder / "a.pt"), 3 * 4000u);
  const StateDict back = read_pt(folder / "a.pt").state;
  EXPECT_EQ(back.tensor("embedding").const_data_ptr(), back.tensor("head").const_data_ptr());
  EXPECT_NE(back.tensor("embedding").const_data_ptr(), back.tensor("other").const_data_ptr());
  expect_same_state(state, back);
}

TEST(PtFile, ReadsPythonsStateDict) {
  const PtFile file = read_pt(python_file("state_dict.pt"));
  EXPECT_TRUE(file.groups.empty());
  EXPECT_TRUE(file.passed_over.empty());
  StateDict expected;
  expected.set("0.weight", counting({2, 3}).div(4));
  expected.set("0.bias", counting({2}).div(4));
  expected.set("1.weight", counting({2}).div(4));
  expected.set("1.bias", counting({2}).div(4));
  expected.set("1.running_mean", at::zeros({2}));
  expected.set("1.running_var", at::ones({2}));
  expected.set("1.num_batches_tracked", at::zeros({}, at::kLong));
  const std::pair<const char*, at::ScalarType> types[] = {
      {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},     {"int32", at::kInt},    {"int16", at::kShort},
      {"int8", at::kChar},      {"uint8", at::kByte},   {"complex64", at::kComplexFloat}};
  for (const auto& [name, type] : types) expected.set(name, counting({5}, type));
  expected.set("bool", at::tensor({1, 0, 1}, at::kInt).to(at::kBool));
  const at::Tensor base = counting({2, 3, 4});
  expected.set("base", base);
  expected.set("transposed", base.transpose(0, 2));
  expected.set("slice", base.select(0, 1).slice(0, 1).slice(1, 0, 4, 2));
  expected.set("expanded", at::ones({5, 2}));
  expected.set("scalar", at::full({}, 7, at::kLong));
  expected.set("empty", at::empty({0, 3}, at::kHalf));
  expected.set("parameter", counting({2}));
  expected.set("nan", at::tensor({0x7fc12345, -1}, at::kInt).view(at::kFloat));
  expect_same_state(expected, file.state);
  EXPECT_EQ(file.state.tensor("base").storage().data(), file.state.tensor("slice").storage().data());
}

TEST(PtFile, ReadsATrainingCheckpointOfMmengine) {
  const PtFile file = read_pt(python_file("mmengine.pth"));
  EXPECT_EQ(file.groups,
            (std::vector<std::string>{"meta", "state_dict", "message_hub", "optimizer", "ema_state_dict"}));
  const StateDict& state = file.state;
  expect_same_tensor("weight", state.tensor("state_dict.weight"), counting({2, 3}));
  expect_same_tensor("ema", state.tensor("ema_state_dict.module.bias"), counting({2}).add(1));
  EXPECT_EQ(state.tensor("optimizer.state.0.exp_avg").sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(state.number("optimizer.param_groups.0.lr"), 0.01);
  EXPECT_EQ(state.integer("optimizer.param_groups.0.params.1"), 1);
  EXPECT_EQ(state.integer("meta.epoch"), 2);
  EXPECT_EQ(state.integer("meta.iter"), int64_t{1} << 40);
  EXPECT_EQ(state.number("meta.lr"), 0.125);
  EXPECT_EQ(state.text("meta.cfg"), "a = 1\n");
  EXPECT_EQ(state.text("meta.classes.1"), "dog");
  EXPECT_EQ(state.integer("meta.shape.1"), 3);
  EXPECT_EQ(state.text("meta.dtype"), "torch.float16");
  EXPECT_TRUE(state.flag("meta.deterministic"));
  EXPECT_EQ(state.number("meta.shares.1"), 0.5);
  EXPECT_FALSE(state.has("meta.seed"));
  EXPECT_EQ(file.passed_over,
            (std::vector<std::string>{"meta.huge", "meta.best", "message_hub.log_scalars.train/loss"}));
}

TEST(PtFile, ReadsArchivesWithNumbersOf64Bits) {
  expect_same_state(read_pt(python_file("protocol4.pt")).state, read_pt(python_file("zip64.pt")).state);
}

TEST(PtFile, RefusesWhatIsNoDictionaryOfTensorsAndSaysWhatToDo) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"legacy.pt", {"before PyTorch 1.6", "save it again with torch.save"}},
      {"forbidden.pt", {"'posix.system'", "nothing of it was run", "torch.save(model.state_dict(), 'weights.pt')"}},
      {"complex.pt", {"ComplexDoubleStorage", "view_as_real"}},
      {"sparse.pt", {"_rebuild_sparse_tensor", "convert that tensor"}},
      {"uint16.pt", {"_rebuild_tensor_v3", "convert that tensor"}},
      {"list.pt", {"no dictionary of tensors"}},
      {"script.pt", {"TorchScript program", "type: torchscript"}},
      {"compressed.pt", {"is compressed", "zip -0"}},
      {"big_endian.pt", {"big-endian"}},
      {"no_pickle.pt", {"without the entry data.pkl"}}};
  for (const auto& [name, parts] : cases) {
    SCOPED_TRACE(name);
    std::vector<std::string> all = parts;
    all.push_back(python_file(name));
    expect_error<DataError>([&, &file = name] { read_pt(python_file(file)); }, all);
  }
  EXPECT_FALSE(std::filesystem::exists("/tmp/duet-ran-code"));
}

TEST(PtFile, RefusesWhatPythonCouldNotHold) {
  const TempDir folder;
  const auto refuses = [&](const std::function<void(StateDict&)>& fill, const std::vector<std::string>& words) {
    StateDict state;
    fill(state);
    expect_error<DataError>([&] { write_pt(folder / "a.pt", state); }, words);
  };
  refuses([](StateDict& state) { state.set("text", std::string("\xff\xfe")); }, {"not UTF-8"});
  refuses([](StateDict& state) { state.set("\xff", at::ones({1})); }, {"not UTF-8"});
  refuses([](StateDict& state) { state.set("z", at::ones({1}, at::kComplexDouble)); }, {"'z'", "view_as_real"});
  refuses(
      [](StateDict& state) {
        state.set("a", at::ones({1}));
        state.set("a", true);
      },
      {"is a tensor and a value"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PtFile, NamesPathAndReasonIfAFileCannotBeReadOrWritten) {
  const TempDir folder;
  expect_error<DataError>([&] { read_pt(folder / "none"); }, {folder / "none", "No such file"});
  expect_error<DataError>([&] { read_pt(folder.path()); }, {"Is a directory"});
  for (const char* text : {"", "hello, this is text"})
    expect_error<DataError>([&] { read_pt(folder.write("text", text)); }, {"no ZIP directory", "another format"});
  StateDict state;
  state.set("a", at::ones({1}));
  const std::string under_file = folder.write("file", "x") + "/a.pt";
  expect_error<DataError>([&] { write_pt(under_file, state); }, {under_file, "Not a directory"});
  std::filesystem::create_directory(folder / "target.pt");
  folder.write("target.pt/inside", "x");
  expect_error<DataError>([&] { write_pt(folder / "target.pt", state); }, {"cannot rename"});
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos) << "a temporary file stayed";
  }
}

TEST(PtFile, NoticesEveryByteOfATensorThatChanged) {
  const TempDir folder;
  StateDict state;
  state.set("a", at::arange(64, at::kFloat));
  write_pt(folder / "a.pt", state);
  const std::string bytes = read_bytes(folder / "a.pt");
  const std::string values = tensor_bytes(state.tensor("a"));
  const size_t at = bytes.find(values);
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(at % 64, 0u);
  for (size_t i = 0; i < values.size(); ++i) {
    std::string damaged = bytes;
    damaged[at + i] ^= 1;
    expect_error<DataError>([&] { read_pt(folder.write("b.pt", damaged)); }, {"data/0", "CRC"});
  }
}

}  // namespace
}  // namespace duet
