#include "core/exported/layers.h"
#include <algorithm>
#include <tuple>
#include "base/detail/text.h"
#include "io/file_io.h"

namespace duet::exported {

namespace {

// An expanded tensor cannot be loaded into.
at::Tensor writable(const at::Tensor& tensor) {
  const bool is_expanded = tensor.numel() > 0 && std::ranges::count(tensor.strides(), 0) > 0;
  return is_expanded ? tensor.detach().clone(at::MemoryFormat::Contiguous).set_requires_grad(tensor.requires_grad())
                     : tensor;
}

// Tensors of one kind, memory and shape are one: tied weights, which a file has under each of their names. A frozen
// weight or a buffer over the memory of one that is trained gets no gradient.
class TiedTensors {
 public:
  at::Tensor unique(const at::Tensor& tensor, ModelTensor::Kind kind) {
    if (tensor.numel() == 0) return tensor;
    const Key key{tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(), kind, tensor.requires_grad()};
    const auto known = known_.find(key);
    return known != known_.end() ? known->second : known_.emplace(key, writable(tensor)).first->second;
  }

 private:
  using Key = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, ModelTensor::Kind, bool>;
  std::map<Key, at::Tensor> known_;
};

// "layers.0" and "weight" of "layers.0.weight".
std::pair<std::string, std::string> split_last(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::pair(std::string(), name)
                                  : std::pair(name.substr(0, dot), name.substr(dot + 1));
}

// Modules have no empty names, and are not nested without end.
void check_name(const std::string& name) {
  constexpr std::ptrdiff_t kMaxLevels = 64;
  const bool has_empty =
      name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != std::string::npos;
  expect_file(!has_empty && std::ranges::count(name, '.') < kMaxLevels, "'", one_line(name, 200),
              "' is no name of a tensor or module");
}

// A parameter, a buffer and a module of one name.
template <class Call>
auto registered(const std::string& name, const Call& call) {
  try {
    return call();
  } catch (const c10::Error&) {
    throw MalformedFile{"the name '" + one_line(name, 200) + "' is given twice"};
  }
}

}  // namespace

void Layer::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  // As Module::to() does it, so that whoever has the tensor has it there.
  for (at::Tensor& tensor : constants) tensor.set_data(tensor.to(device, non_blocking));
}

namespace {

// The layer at `path`, made with all above it where it is missing.
std::shared_ptr<Layer> layer_at(LayersByPath& layers, const std::string& path, const Program& program) {
  if (const auto known = layers.find(path); known != layers.end()) return known->second;
  const auto [parent, name] = split_last(path);
  const auto above = layer_at(layers, parent, program);
  const auto module = std::ranges::find(program.modules, path, &Module::path);
  const auto made = std::make_shared<Layer>(module == program.modules.end() ? "" : module->type);
  registered(path, [&, &name = name] { return above->register_module(name, made); });
  return layers.emplace(path, made).first->second;
}

}  // namespace

LayersByPath make_layers(const Program& program, const TensorsByName& tensors) {
  LayersByPath layers{{"", std::make_shared<Layer>(program.modules.front().type)}};
  TiedTensors tied;
  for (const ModelTensor& item : program.tensors) {
    if (item.kind == ModelTensor::Kind::kConstant) continue;
    const auto found = tensors.find(item.name);
    expect_file(found != tensors.end(), "the tensor '", item.name, "' is missing");
    const at::Tensor tensor = tied.unique(found->second, item.kind);
    check_name(item.name);
    const auto [path, name] = split_last(item.name);
    const auto layer = layer_at(layers, path, program);
    registered(item.name, [&, &name = name] {
      return item.kind == ModelTensor::Kind::kParameter
                 ? layer->register_parameter(name, tensor, tensor.requires_grad())
                 : layer->register_buffer(name, tensor);
    });
  }
  for (const Module& module : program.modules) {
    if (module.path.empty()) continue;
    check_name(module.path);
    layer_at(layers, module.path, program);
  }
  return layers;
}

}  // namespace duet::exported
