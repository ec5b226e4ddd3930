#pragma once

#include <map>
#include <string>
#include <ATen/core/Tensor.h>
#include "base/batch.h"
#include "io/zip_archive.h"

namespace duet {

// The parts of a .pt2 archive, and the storages of its tensors. Throws MalformedFile.
class Pt2Archive {
 public:
  explicit Pt2Archive(const std::string& path);

  const zip_archive::Reader& zip() const { return zip_; }
  std::string program() const;
  NamedTensors weights() { return tensors("weights"); }
  NamedTensors constants() { return tensors("constants"); }
  // Those that were read so far, by their entries' names: 1-d, of one type, whole.
  const std::map<std::string, at::Tensor>& storages() const { return storages_; }
  const std::string& root() const { return root_; }  // "model/": what every entry begins with

 private:
  NamedTensors tensors(const std::string& kind);
  const at::Tensor& storage(const std::string& entry, at::ScalarType type);

  zip_archive::Reader zip_;
  std::string root_, model_;
  std::map<std::string, at::Tensor> storages_;
};

}  // namespace duet
