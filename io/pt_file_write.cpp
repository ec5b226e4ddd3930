#include <bit>
#include <exception>
#include <string>
#include <unordered_map>
#include <variant>
#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/StringUtil.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"
#include "io/pt_file.h"
#include "io/read_file.h"

namespace duet {

static_assert(std::endian::native == std::endian::little, "the file says that its bytes are little-endian");

namespace {

void check_text(const std::string& text) {
  require<DataError>(is_utf8(text),
                     c10::str("[pt] a name or text is not UTF-8, as Python's texts are: '", text, "'; rename it"));
}

// Tensors of one storage share it in the file, which knows a storage by one type and holds all of it.
class WholeStorages {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    const void* const memory = tensor.storage().unsafeGetStorageImpl();
    const bool is_whole = tensor.storage().nbytes() == tensor.nbytes();
    if (is_whole && types_.try_emplace(memory, tensor.scalar_type()).first->second == tensor.scalar_type()) {
      return tensor;
    }
    return tensor.clone();
  }

 private:
  std::unordered_map<const void*, at::ScalarType> types_;
};

// Tensors and values by name.
c10::impl::GenericDict dictionary_of(const StateDict& state) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  WholeStorages storages;
  for (const auto& [name, tensor] : state.tensors()) {
    check_text(name);
    dict.insert(name, storages.of(plain_tensor("pt", name, tensor)));
  }
  for (const auto& [name, value] : state.values()) {
    check_text(name);
    require<DataError>(state.tensors().count(name) == 0, "[pt] '" + name + "' is a tensor and a value; rename one");
    if (const auto* text = std::get_if<std::string>(&value)) check_text(*text);
    std::visit([&, &key = name](const auto& content) { dict.insert(key, content); }, value);
  }
  return dict;
}

}  // namespace

void write_pt(const std::string& path, const StateDict& state) {
  std::string program;
  torch::jit::Pickler pickler([&](const char* bytes, size_t count) { program.append(bytes, count); },
                              /*tensor_table=*/nullptr, /*type_renamer=*/nullptr, /*memoized_class_types=*/nullptr,
                              /*get_tensor_id=*/nullptr, /*tag_aggregates=*/false);  // whose tags only LibTorch reads
  pickler.protocol();
  pickler.pushIValue(dictionary_of(state));
  pickler.stop();
  uint64_t bytes = program.size();  // at least
  for (const at::Tensor& tensor : pickler.tensorData()) bytes += tensor.nbytes();
  const auto fill = [&](file_io::FileWriter& file) {
    std::exception_ptr failure;  // kept from LibTorch, which would end the process
    caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, size_t count) {
      if (!failure) failure = caught([&] { file.write(data, count); });
      return count;
    });
    const auto add = [&](const std::string& name, const std::string& text) {
      archive.writeRecord(name, text.data(), text.size());
    };
    // In the order of torch.save.
    add("data.pkl", program);
    add(".format_version", "1");
    add(".storage_alignment", "64");
    add("byteorder", "little");
    for (size_t i = 0; i < pickler.tensorData().size(); ++i) {
      const at::Tensor& tensor = pickler.tensorData()[i];
      archive.writeRecord(concat_text("data/", i), tensor.const_data_ptr(), tensor.nbytes());
    }
    archive.writeEndOfFile();
    if (failure) std::rethrow_exception(failure);
  };
  write_file("pt", [&] { file_io::replace_file(path, bytes, fill); });
}

}  // namespace duet
