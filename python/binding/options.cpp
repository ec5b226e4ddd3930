#include "python/binding/options.h"
#include "base/detail/text.h"
#include "base/error.h"

namespace duet::python {

namespace {

using Kind = OptionField::Kind;

bool is_number(const py::handle& object) {
  return (PyLong_Check(object.ptr()) || PyFloat_Check(object.ptr())) && !PyBool_Check(object.ptr());
}
bool is_integer(const py::handle& object) { return PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr()); }

template <class Is>
bool is_list_of(const py::handle& object, Is is) {
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) return false;
  for (const py::handle item : object) {
    if (!is(item)) return false;
  }
  return true;
}

bool is_text(const py::handle& object) { return PyUnicode_Check(object.ptr()) != 0; }

// Nothing if the object is of another kind.
std::optional<OptionValue> value_of(Kind kind, const py::handle& object) {
  switch (kind) {
    case Kind::kBool:
      if (PyBool_Check(object.ptr())) return py::cast<bool>(object);
      break;
    case Kind::kInteger:
      if (is_integer(object)) return py::cast<int64_t>(object);
      break;
    case Kind::kNumber:
      if (is_number(object)) return py::cast<double>(object);
      break;
    case Kind::kText:
      if (is_text(object)) return py::cast<std::string>(object);
      break;
    case Kind::kIntegers:
      if (is_list_of(object, is_integer)) return py::cast<std::vector<int64_t>>(object);
      break;
    case Kind::kNumbers:
      if (is_list_of(object, is_number)) return py::cast<std::vector<double>>(object);
      break;
    case Kind::kTexts:
      if (is_list_of(object, is_text)) return py::cast<std::vector<std::string>>(object);
      break;
    case Kind::kOther: break;
  }
  return std::nullopt;
}

}  // namespace

py::object to_python(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> py::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>)
          return py::none();
        else
          return py::cast(held);
      },
      value);
}

OptionValue to_option(const std::string& struct_name, const OptionField& field, const py::handle& object) {
  if (object.is_none() && field.optional) return {};
  const bool is_list = PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
  const bool fits = !is_list || field.count == 0 || py::len(object) == field.count;
  const auto given = py::reinterpret_borrow<py::object>(object);
  const py::object one_or_all = field.or_one && !is_list ? py::make_tuple(given) : given;
  if (auto value = value_of(field.kind, one_or_all); value && fits) {
    check_option(struct_name, field, *value);
    return *std::move(value);
  }
  throw ConfigError("[" + struct_name + "] " + field.name + " is " + shown(object) + ", expected " +
                    expected_of(field));
}

std::string python_name(const std::string& option) {
  const bool is_word = py::cast<bool>(py::module_::import("keyword").attr("iskeyword")(option));
  return is_word ? option + "_" : option;
}

void set_fields(const OptionFields& fields, void* options, const py::dict& arguments) {
  for (const auto& [key, object] : arguments) {
    const auto name = py::cast<std::string>(key);
    const OptionField* field = fields.find(name);
    if (field == nullptr && name.ends_with('_') && python_name(name.substr(0, name.size() - 1)) == name) {
      field = fields.find(name.substr(0, name.size() - 1));
    }
    if (field == nullptr || !field->is_member()) {
      std::vector<std::string> names;
      for (const OptionField& known : fields) {
        if (known.is_member()) names.push_back(known.name);
      }
      throw ConfigError("[" + fields.name() + "] there is no option '" + name + "'; " + known_and_nearest(name, names));
    }
    field->set(options, to_option(fields.name(), *field, object));
  }
  fields.check(options);
}

std::string repr_of(const OptionFields& fields, const void* options, const std::string& name) {
  std::string text = name + "(";
  bool first = true;
  for (const OptionField& field : fields) {
    if (!field.is_member()) continue;
    text += (first ? "" : ", ") + python_name(field.name) + "=" + shown(to_python(field.get(options)));
    first = false;
  }
  return text + ")";
}

std::string doc_of(const OptionFields& fields, const void* defaults, const std::string& name, const char* summary) {
  std::string text = std::string(summary) + "\n\n" + repr_of(fields, defaults, name) + "\n\n";
  for (const OptionField& field : fields) {
    if (!field.is_member()) continue;
    const std::string expected = field.kind == Kind::kBool ? "True or False" : expected_of(field);
    text += python_name(field.name) + ": " + field.meaning + " (" + expected + ")\n";
  }
  return text;
}

}  // namespace duet::python
