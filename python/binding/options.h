#pragma once

#include <functional>
#include <string>
#include <vector>
#include "base/options.h"
#include "python/binding/py.h"

namespace duet::python {

// An option's value as a Python object: None, bool, int, float, str, list.
py::object to_python(const OptionValue& value);
// Throws ConfigError "[<name>] <field> is ..., expected ..." for an object of another kind.
OptionValue to_option(const std::string& struct_name, const OptionField& field, const py::handle& object);

// The name of an option in Python: "async_" for one whose name is a word of the language.
std::string python_name(const std::string& option);

// Sets every field that `arguments` names, then checks them. Throws ConfigError for a name that is no field, with the
// near ones.
void set_fields(const OptionFields& fields, void* options, const py::dict& arguments);
// "AdamW(lr=0.001, ...)"
std::string repr_of(const OptionFields& fields, const void* options, const std::string& name);
// What help() shows: a line per field with its default, range and meaning.
std::string doc_of(const OptionFields& fields, const void* defaults, const std::string& name, const char* summary);

// Options is a Python class called `name` whose keyword arguments and attributes are its fields.
template <class Options>
py::class_<Options> bind_options(py::module_& module, const char* name, const char* summary) {
  const OptionFields& fields = Options::fields();
  const Options defaults{};
  py::class_<Options> bound(module, name, doc_of(fields, &defaults, name, summary).c_str());
  bound.def(py::init([](const py::kwargs& arguments) {
    Options options{};
    set_fields(Options::fields(), &options, arguments);
    return options;
  }));
  py::dict fallbacks;  // for those who read the class: some options have no default that would be valid
  for (const OptionField& field : fields) {
    if (!field.is_member()) continue;
    const std::string attribute = python_name(field.name);
    fallbacks[attribute.c_str()] = to_python(field.get(&defaults));
    bound.def_property(
        attribute.c_str(), [&field](const Options& options) { return to_python(field.get(&options)); },
        [&field](Options& options, const py::object& object) {
          set_fields(Options::fields(), &options, py::dict(py::arg(python_name(field.name).c_str()) = object));
        });
  }
  bound.attr("_defaults") = fallbacks;
  bound.def("__repr__",
            [name = std::string(name)](const Options& options) { return repr_of(Options::fields(), &options, name); });
  return bound;
}

// What makes a Product (a pointer, or an optional) of an object of a bound class; nothing of another object.
template <class Product>
std::vector<std::function<Product(const py::handle&)>>& makers() {
  static std::vector<std::function<Product(const py::handle&)>> all;
  return all;
}

// made_of() makes a Product of each Given by `make`.
template <class Product, class Given, class Make>
void add_maker(Make make) {
  makers<Product>().push_back([make](const py::handle& object) {
    return py::isinstance<Given>(object) ? Product(make(py::cast<const Given&>(object))) : Product();
  });
}

// Options is a Python class called `name`, of whose objects a Product is made.
template <class Product, class Options, class Make>
void bind_product(py::module_& module, const char* name, const char* summary, Make make) {
  bind_options<Options>(module, name, summary);
  add_maker<Product, Options>(make);
}

// The same for a class without options: `make` tells the classes apart.
template <class Product, class Make>
void bind_plain(py::module_& module, const char* name, const char* summary, Make make) {
  struct Plain {};
  py::class_<Plain>(module, name, summary).def(py::init<>());
  add_maker<Product, Plain>([make](const Plain&) { return make(); });
}

template <class Product>
Product made_of(const py::handle& object) {
  for (const auto& make : makers<Product>()) {
    if (Product made = make(object)) return made;
  }
  return Product();
}

}  // namespace duet::python
