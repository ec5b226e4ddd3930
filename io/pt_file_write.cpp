#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <tuple>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <c10/util/strides.h>
#include "base/detail/concat_text.h"
#include "base/error.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"
#include "io/pt_file.h"
#include "io/zip_archive.h"

namespace duet {

static_assert(std::endian::native == std::endian::little, "the file says that its bytes are little-endian");

namespace {

constexpr const char* kFolder = "archive";

// The bytes of the pickle of one flat OrderedDict, protocol 2.
class DictWriter {
 public:
  DictWriter() : bytes_("\x80\x02") {
    global("collections", "OrderedDict");
    bytes_ += ")R(";
  }

  void put(const std::string& name, bool value) {
    text(name);
    bytes_ += value ? '\x88' : '\x89';
  }
  void put(const std::string& name, int64_t value) {
    text(name);
    integer(value);
  }
  void put(const std::string& name, double value) {
    text(name);
    bytes_ += 'G';
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) bytes_.push_back(static_cast<char>(bits >> shift));
  }
  void put(const std::string& name, const std::string& value) {
    text(name);
    text(value);
  }

  // A contiguous tensor that is the whole of the storage `key`.
  void put_tensor(const std::string& name, const char* storage_class, const std::string& key,
                  const at::Tensor& tensor) {
    text(name);
    global("torch._utils", "_rebuild_tensor_v2");
    bytes_ += "((";
    text("storage");
    global("torch", storage_class);
    text(key);
    text("cpu");
    integer(tensor.numel());
    bytes_ += "tQK";
    bytes_.push_back('\0');  // offset
    tuple(tensor.sizes());
    tuple(c10::contiguous_strides(tensor.sizes()));
    bytes_ += '\x89';  // requires_grad
    global("collections", "OrderedDict");
    bytes_ += ")RtR";
  }

  const std::string& finish() { return bytes_ += "u."; }

 private:
  void append(uint64_t value, std::size_t count) {  // little-endian
    bytes_.append(reinterpret_cast<const char*>(&value), count);
  }

  void text(const std::string& text) {
    bytes_ += 'X';
    append(text.size(), 4);
    bytes_ += text;
  }

  void integer(int64_t value) {
    if (value >= 0 && value < 0x100) {
      bytes_ += 'K';
      append(static_cast<uint64_t>(value), 1);
    } else if (value == static_cast<int32_t>(value)) {
      bytes_ += 'J';
      append(static_cast<uint64_t>(value), 4);
    } else {
      bytes_ += "\x8a\x08";
      append(static_cast<uint64_t>(value), 8);
    }
  }

  // Written at its first use, recalled from the memo at the others.
  void global(const std::string& module, const std::string& name) {
    const auto found = std::find(memo_.begin(), memo_.end(), module + "." + name);
    const auto place = static_cast<char>(found - memo_.begin());
    if (found != memo_.end()) {
      bytes_ += {'h', place};
      return;
    }
    memo_.push_back(module + "." + name);
    bytes_ += "c" + module + "\n" + name + "\nq";
    bytes_.push_back(place);
  }

  void tuple(at::IntArrayRef values) {
    bytes_ += '(';
    for (const int64_t value : values) integer(value);
    bytes_ += 't';
  }

  std::string bytes_;
  std::vector<std::string> memo_;
};

void check_text(const std::string& text) {
  require<DataError>(is_utf8(text),
                     c10::str("[pt] a name or text is not UTF-8, as Python's texts are: '", text, "'; rename it"));
  require<DataError>(text.size() <= std::numeric_limits<uint32_t>::max(), "[pt] a text exceeds 4 GiB; leave it out");
}

struct Contents {
  DictWriter dict;
  std::vector<at::Tensor> storages;
};

void add_tensors(const StateDict& state, Contents& contents) {
  std::map<std::tuple<const void*, int64_t, at::ScalarType>, size_t> known;
  for (const auto& [name, tensor] : state.tensors()) {
    check_text(name);
    const at::Tensor plain = plain_tensor("pt", name, tensor);
    const auto place = std::tuple(plain.const_data_ptr(), plain.numel(), plain.scalar_type());
    const auto [storage, is_new] = known.try_emplace(place, contents.storages.size());
    if (is_new) contents.storages.push_back(plain);
    contents.dict.put_tensor(name, file_type(plain.scalar_type())->storage_class, std::to_string(storage->second),
                             plain);
  }
}

void add_values(const StateDict& state, DictWriter& dict) {
  for (const auto& [name, value] : state.values()) {
    check_text(name);
    require<DataError>(state.tensors().count(name) == 0, "[pt] '" + name + "' is a tensor and a value; rename one");
    if (const auto* text = std::get_if<std::string>(&value)) check_text(*text);
    std::visit([&, &key = name](const auto& content) { dict.put(key, content); }, value);
  }
}

}  // namespace

void write_pt(const std::string& path, const StateDict& state) {
  Contents contents;
  add_tensors(state, contents);
  add_values(state, contents.dict);
  const std::string& program = contents.dict.finish();
  const std::string version = "3\n", byte_order = "little", format_version = "1", alignment = "64";
  std::vector<zip_archive::Part> parts;
  const auto add = [&](const std::string& name, const void* data, uint64_t bytes) {
    parts.push_back({kFolder + ("/" + name), data, bytes});
  };
  // In the order of torch.save.
  add("data.pkl", program.data(), program.size());
  add(".format_version", format_version.data(), format_version.size());
  add(".storage_alignment", alignment.data(), alignment.size());
  add("byteorder", byte_order.data(), byte_order.size());
  for (size_t i = 0; i < contents.storages.size(); ++i) {
    add(concat_text("data/", i), contents.storages[i].const_data_ptr(), contents.storages[i].nbytes());
  }
  add("version", version.data(), version.size());
  try {
    zip_archive::write(path, parts);
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[pt] ", error.what(), "; free space or name another place"));
  }
}

}  // namespace duet
