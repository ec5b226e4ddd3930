#include <filesystem>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "base/error.h"
#include "data/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

std::vector<int64_t> row(const at::Tensor& tensor, int64_t index) {
  const at::Tensor line = tensor[index].contiguous();
  return {line.const_data_ptr<int64_t>(), line.const_data_ptr<int64_t>() + line.numel()};
}

class TextDatasetTest : public testing::Test {
 protected:
  TextDatasetOptions options(const std::string& text, const std::string& split, int64_t context) const {
    return {.path = dir_.write("text", text), .split = split, .context = context};
  }
  TempDir dir_;
};

TEST_F(TextDatasetTest, YieldsWindowsAndTheNextCharacters) {
  const TextDataset data(options("hello world", "all", 3));
  ASSERT_EQ(data.size(), 3);
  const Batch batch = data.get({2, 0});
  EXPECT_EQ(data.decode(row(batch["input"], 0)), "wor");
  EXPECT_EQ(data.decode(row(batch["target"], 0)), "orl");
  EXPECT_EQ(data.decode(row(batch["input"], 1)), "hel");
  EXPECT_EQ(data.decode(row(batch["target"], 1)), "ell");
  EXPECT_EQ(batch["input"].scalar_type(), at::kLong);
}

TEST_F(TextDatasetTest, NumbersDistinctBytesInTheirOrder) {
  const TextDataset data(options("cab\xFF\x01 cab", "all", 2));
  EXPECT_EQ(data.vocab_size(), 6);
  EXPECT_EQ(data.encode("\x01 abc\xFF"), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(data.decode(data.encode("a cab")), "a cab");
  expect_error<DataError>([&] { data.encode("abx"); }, {"byte 120", "position 2"});
  expect_error<DataError>([&] { data.decode({0, 6}); }, {"token 6", "0 to 5"});
}

TEST_F(TextDatasetTest, RefusesWhatIsNoTextOfBytes) {
  const std::string utf16("h\0e\0l\0l\0o\0", 10), packed("\x1F\x8B\x08\0\0\0\0\0\0\x03", 10);
  const std::string utf32("\0\0\xFE\xFF\0\0\0h", 8);
  for (const std::string& text : {"\xFF\xFE" + utf16, "\xFE\xFF" + utf16, utf16, utf32, packed}) {
    expect_error<DataError>([&] { TextDataset(options(text, "all", 2)); }, {"expected UTF-8", "save it as UTF-8"});
  }
}

TEST_F(TextDatasetTest, SplitsShareAVocabularyAndNoCharacter) {
  const std::string text = "aaaaabbbbbcccccddddd";
  TextDatasetOptions train = options(text, "train", 1), val = options(text, "val", 1);
  train.val_fraction = val.val_fraction = 0.25;
  const TextDataset train_data(train), val_data(val);
  EXPECT_EQ(train_data.vocab_size(), 4);
  EXPECT_EQ(val_data.vocab_size(), 4);
  EXPECT_EQ(train_data.size(), 14);
  EXPECT_EQ(val_data.size(), 4);
  EXPECT_EQ(val_data.decode(row(val_data.get({0})["input"], 0)), "d");
  EXPECT_EQ(train_data.decode(row(train_data.get({13})["target"], 0)), "c");
}

TEST_F(TextDatasetTest, NumbersAreThoseOfTheTrainingDataOrTheCheckpoint) {
  const TextDataset train(options("cab\xFF cab", "all", 2));
  EXPECT_EQ(TextDataset(options("bcc", "all", 1)).encode("b"), (std::vector<int64_t>{0}));
  for (const DatasetUse& use : {DatasetUse{.training = &train}, DatasetUse{.encoding = train.encoding()}}) {
    const TextDataset other(options("bcc", "all", 1), use);
    other.check_fits(train);
    EXPECT_EQ(row(other.get({0})["input"], 0), train.encode("b"));
    expect_error<ConfigError>([&] { TextDataset(options("abx", "all", 1), use); }, {"byte 120 at position 2"});
  }
  const TextDataset kept({.path = dir_ / "gone"}, {.encoding = train.encoding(), .reads = false});
  EXPECT_EQ(kept.vocabulary(), train.vocabulary());
  expect_error<ConfigError>([&] { TextDataset(options("cabd\xFF ", "all", 2)).check_fits(kept); },
                            {"byte 100", "the checkpoint was trained on", "load_from"});
}

TEST_F(TextDatasetTest, RefusesWhatItCannotRead) {
  expect_error<DataError>([&] { TextDataset({.path = dir_ / "none"}); }, {dir_ / "none"});
  expect_error<DataError>([&] { TextDataset({.path = dir_.path().string()}); }, {"expected a readable file"});
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  expect_error<DataError>([&] { TextDataset({.path = dir_ / "pipe"}); },
                          {"expected a readable file", "not a regular file"});
  const std::string huge = dir_.write("huge", "");
  std::filesystem::resize_file(huge, uint64_t{1} << 40);
  expect_error<DataError>([&] { TextDataset({.path = huge}); }, {"huge", "more than 4294967296 bytes"});
  expect_error<DataError>([&] { TextDataset(options("abcd", "all", 4)); }, {"4 characters", "context 4"});
  expect_error<DataError>([&] { TextDataset(options("", "all", 1)); }, {"0 characters"});
  expect_error<DataError>([&] { TextDataset(options("abcdefgh", "val", 1)); }, {"split 'val'"});
  const TextDataset data(options("abcdefgh", "all", 3));
  expect_error<DataError>([&] { data.get({2}); }, {"index 2", "0 to 1"});
}

}  // namespace
}  // namespace duet
