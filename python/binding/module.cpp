#include "base/detail/op_tap.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/weights_file.h"
#include "python/binding/bind.h"
#include "python/binding/code_place.h"
#include "python/binding/context.h"
#include "python/binding/generators.h"

namespace duet::python {

namespace {

LogLevel parse_level(const std::string& text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  throw ConfigError("[set_log_level] level is '" + text + "', expected debug, info, warning or error");
}

// torch.cond, scan and their like know PyTorch's own keys alone: without that of the tap they run, and their ops are
// heard.
void let_higher_order_ops_pass() {
  const uint64_t tap = c10::DispatchKeySet(OpTap::kKey).raw_repr();
  const py::dict ops = py::module_::import("torch._ops").attr("_higher_order_ops");
  for (const auto& item : ops) {
    const py::object keys = py::getattr(item.second, "non_fallthrough_keys", py::none());
    if (!py::hasattr(keys, "from_raw_repr")) continue;
    const uint64_t without = keys.attr("raw_repr")().cast<uint64_t>() & ~tap;
    item.second.attr("non_fallthrough_keys") = keys.attr("from_raw_repr")(without);
  }
}

}  // namespace

PYBIND11_MODULE(_duet, module) {
  module.doc() = "duet's library; import duet.";
  module.attr("__version__") = DUET_VERSION;
  module.attr("built_for_torch") = DUET_TORCH_VERSION;
  bind_errors(module);
  set_host_generators({host_random_state, set_host_random_state});
  tell_in_python();
  let_higher_order_ops_pass();
  bind_trainer_options(module);
  bind_distributed(module);
  bind_context(module);
  bind_hooks(module);
  bind_metrics(module);
  bind_trainer(module);
  bind_graph_step(module);
  module.def("seed_all", &seed_all, py::arg("seed"), "Seeds the default generators, as torch.manual_seed does.");
  module.def(
      "set_log_level", [](const std::string& level) { set_log_level(parse_level(level)); }, py::arg("level"),
      "'debug', 'info', 'warning' or 'error': what duet writes to stderr.");
  module.def(
      "read_weights", [](const std::string& path) { return to_dict(read_weights({.path = path})); }, py::arg("path"),
      "Weights of a checkpoint, a safetensors file or a file of torch.save, by name.");
  module.def(
      "write_weights", [](const std::string& path, const py::dict& weights) { write_weights(path, to_state(weights)); },
      py::arg("path"), py::arg("weights"), "Writes a *.safetensors or *.pt file.");
}

}  // namespace duet::python
