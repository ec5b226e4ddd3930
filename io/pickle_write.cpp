#include <algorithm>
#include <bit>
#include "io/pickle.h"

namespace duet::pickle {

namespace {

void append(std::string& bytes, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

DictWriter::DictWriter() : bytes_("\x80\x02") {
  global("collections", "OrderedDict");
  bytes_ += ")R(";
}

// Whether `what` was written before: then it is recalled. Else the caller writes it and it is kept.
bool DictWriter::remembered(const std::string& what) {
  const auto found = std::find(memo_.begin(), memo_.end(), what);
  if (found == memo_.end()) {
    memo_.push_back(what);
    return false;
  }
  bytes_ += 'h';
  bytes_.push_back(static_cast<char>(found - memo_.begin()));
  return true;
}

void DictWriter::global(const std::string& module, const std::string& name) {
  if (remembered(module + "." + name)) return;
  bytes_ += "c" + module + "\n" + name + "\nq";
  bytes_.push_back(static_cast<char>(memo_.size() - 1));
}

void DictWriter::text(const std::string& text) {
  bytes_ += 'X';
  append(bytes_, text.size(), 4);
  bytes_ += text;
}

void DictWriter::integer(int64_t value) {
  if (value >= 0 && value < 0x100) {
    bytes_ += 'K';
    append(bytes_, static_cast<uint64_t>(value), 1);
  } else if (value == static_cast<int32_t>(value)) {
    bytes_ += 'J';
    append(bytes_, static_cast<uint64_t>(value), 4);
  } else {
    bytes_ += "\x8a\x08";
    append(bytes_, static_cast<uint64_t>(value), 8);
  }
}

void DictWriter::tuple(const std::vector<int64_t>& values) {
  bytes_ += '(';
  for (const int64_t value : values) integer(value);
  bytes_ += 't';
}

void DictWriter::put(const std::string& name, bool value) {
  text(name);
  bytes_ += value ? '\x88' : '\x89';
}

void DictWriter::put(const std::string& name, int64_t value) {
  text(name);
  integer(value);
}

void DictWriter::put(const std::string& name, double value) {
  text(name);
  bytes_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) bytes_.push_back(static_cast<char>(bits >> shift));
}

void DictWriter::put(const std::string& name, const std::string& value) {
  text(name);
  text(value);
}

void DictWriter::put_tensor(const std::string& name, const char* storage_class, const std::string& key,
                            const std::vector<int64_t>& sizes, int64_t elements) {
  text(name);
  global("torch._utils", "_rebuild_tensor_v2");
  bytes_ += "((";
  text("storage");
  global("torch", storage_class);
  text(key);
  text("cpu");
  integer(elements);
  bytes_ += "tQK";
  bytes_.push_back('\0');  // offset
  tuple(sizes);
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  tuple(strides);
  bytes_ += '\x89';  // requires_grad
  global("collections", "OrderedDict");
  bytes_ += ")RtR";
}

const std::string& DictWriter::finish() {
  bytes_ += "u.";
  return bytes_;
}

}  // namespace duet::pickle
