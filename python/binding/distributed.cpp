#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include "base/device.h"
#include "distributed/communicator.h"
#include "python/binding/bind.h"

namespace duet::python {

namespace {

// The ranks that train together; trainers made while it lives belong to them.
class Ranks {
 public:
  explicit Ranks(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}
  ~Ranks() {
    const py::gil_scoped_release no_gil;  // the last one says good-bye to the others
    communicator_.reset();
  }
  Communicator& get() { return *communicator_; }

 private:
  std::shared_ptr<Communicator> communicator_;
};

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// torch.distributed's default group if there is one and none was given.
py::object group_of(const py::object& given) {
  if (!given.is_none()) return given;
  const py::module_ distributed = py::module_::import("torch.distributed");
  const bool ready =
      py::cast<bool>(distributed.attr("is_available")()) && py::cast<bool>(distributed.attr("is_initialized")());
  return ready ? py::object(distributed.attr("group").attr("WORLD")) : py::none();
}

std::unique_ptr<Ranks> init(const py::object& given, const std::string& device) {
  const py::object found = group_of(given);
  if (found.is_none()) {
    const py::gil_scoped_release no_gil;
    return std::make_unique<Ranks>(init_distributed({.device = device}));
  }
  const auto group = py::cast<Group>(found);
  const py::gil_scoped_release no_gil;
  return std::make_unique<Ranks>(init_distributed(group, parse_device(device == "auto" ? "cpu" : device)));
}

}  // namespace

void bind_distributed(py::module_& module) {
  py::class_<Ranks>(module, "Ranks", "The processes that train one model together; hold it as long as their trainers.")
      .def_property_readonly("rank", [](Ranks& ranks) { return ranks.get().rank(); })
      .def_property_readonly("world_size", [](Ranks& ranks) { return ranks.get().world_size(); })
      .def("barrier", [](Ranks& ranks) { ranks.get().barrier(); }, py::call_guard<py::gil_scoped_release>());
  module.def(
      "current_ranks", [] { return std::make_unique<Ranks>(current_ranks()); },
      "Those that init_distributed() connected, as long as somebody holds them; else a world of one.");
  module.def(
      "init_distributed", &init, py::arg("group") = py::none(), py::arg("device") = "auto",
      "Connects to the other processes that torchrun, SLURM or MPI has started; a single process gets a world of "
      "one. Trainers made while the result is held sum their gradients. `group`: a process group of "
      "torch.distributed with a backend for the CPU; without it the default one if it is initialized, else a "
      "connection of duet's own, whose errors name a rank that is lost.");
}

}  // namespace duet::python
