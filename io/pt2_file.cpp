#include "io/pt2_file.h"
#include <exception>
#include <map>
#include <string>
#include <vector>
#include <caffe2/serialize/inline_container.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"
#include "io/pt2_archive.h"
#include "io/read_file.h"

namespace duet {

namespace {

void write_entries(Pt2Archive& archive, file_io::FileWriter& file) {
  std::exception_ptr failure;  // kept from LibTorch, which would end the process
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, size_t count) {
    if (!failure) failure = caught([&] { file.write(data, count); });
    return count;
  });
  for (const zip_archive::Entry& entry : archive.zip().entries()) {
    if (!entry.name.starts_with(archive.root())) continue;
    const std::string name = entry.name.substr(archive.root().size());
    if (name.starts_with(".data/")) continue;  // the writer's own
    const auto storage = archive.storages().find(entry.name);
    if (storage != archive.storages().end()) {
      writer.writeRecord(name, storage->second.const_data_ptr(), storage->second.nbytes());
    } else {
      const std::string bytes = archive.zip().text_of(entry.name, entry.bytes);
      writer.writeRecord(name, bytes.data(), bytes.size());
    }
  }
  writer.writeEndOfFile();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

Pt2File read_pt2(const std::string& path) {
  return read_file("pt2", path, [&] {
    Pt2Archive archive(path);
    return Pt2File{archive.program(), archive.weights(), archive.constants()};
  });
}

void write_pt2(const std::string& path, const std::string& source, const StateDict& state) {
  read_file("pt2", source, [&] {
    Pt2Archive archive(source);
    take_numbers("pt2", archive.weights(), state, /*all_are_needed=*/true);
    take_numbers("pt2", archive.constants(), state, /*all_are_needed=*/false);
    write_file("pt2", [&] {
      file_io::replace_file(path, archive.zip().size(),
                            [&](file_io::FileWriter& file) { write_entries(archive, file); });
    });
  });
}

}  // namespace duet
