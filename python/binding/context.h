#pragma once

#include <string>
#include "core/hook.h"
#include "python/binding/py.h"

namespace duet::python {

// What a hook in Python sees, lent to it for one call.
template <class Context>
class Lent {
 public:
  explicit Lent(Context& context) : context_(&context) {}
  // Throws ConfigError if the call is over.
  Context& get() const {
    require<ConfigError>(context_ != nullptr,
                         "[Hook] a Run or StepView was kept by a hook and is used after the call that it was lent for; "
                         "use it within the call");
    return *context_;
  }
  void end() { context_ = nullptr; }

 private:
  Context* context_;
};

using Run = Lent<TrainContext>;
using StepWindow = Lent<StepView>;  // of in_step

// Named tensors as a dict, and back.
py::dict to_dict(const NamedTensors& tensors);
py::dict to_dict(const StateDict& state);
// Throws ConfigError for a value that is no tensor, bool, int, float or str.
StateDict to_state(const py::handle& dict);

// get() and set() of the HyperParameters that `of` gives of an object.
template <class Class, class Of>
void bind_numbers(Class& bound, Of of) {
  using Object = typename Class::type;
  bound
      .def(
          "get",
          [of](Object& object, const std::string& name, std::size_t group) { return of(object).get(group, name); },
          py::arg("name"), py::arg("group") = 0, "A hyper-parameter: 'lr', 'weight_decay', 'beta1', ...")
      .def(
          "set",
          [of](Object& object, const std::string& name, double value, std::size_t group) {
            of(object).set(group, name, value);
          },
          py::arg("name"), py::arg("value"), py::arg("group") = 0, "Takes effect at the next step, in both modes.");
}

}  // namespace duet::python
