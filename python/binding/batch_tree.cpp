#include "python/binding/batch_tree.h"
#include <string>
#include <vector>
#include "base/error.h"
#include "python/binding/context.h"

namespace duet::python {

namespace {

enum class NodeKind { kTensor, kConstant, kDict, kMapping, kList, kTuple, kNamedTuple, kDataclass };

// One place of a nesting. Its objects are shared by all batches of the structure and never changed.
struct Node {
  NodeKind kind = NodeKind::kTensor;
  bool requires_grad = false;  // of a tensor: a leaf that the step differentiates by
  py::object type, constant;   // of the container; of kConstant, of kMapping one to copy, of own sequences attributes
  std::vector<py::object> keys;
  std::vector<Node> children;
};

class PythonStructure : public BatchStructure {
 public:
  PythonStructure(Node root, int64_t key, std::string special)
      : root_(new Node(std::move(root))), key_(key), special_(std::move(special)) {}
  ~PythonStructure() override {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    delete root_;
  }
  int64_t key() const override { return key_; }
  const std::string& special_tensor() const override { return special_; }
  const Node& root() const { return *root_; }

 private:
  Node* root_;  // Python's objects die under the GIL, or with the interpreter
  int64_t key_;
  std::string special_;
};

// Types that are looked up once.
struct Known {
  py::object mapping = py::module_::import("collections.abc").attr("Mapping");
  py::object array = py::module_::import("numpy").attr("ndarray");
  py::object as_tensor = py::module_::import("torch").attr("as_tensor");
  py::object parameter = py::module_::import("torch.nn").attr("Parameter");
  py::object copy = py::module_::import("copy").attr("copy");
  py::object fields = py::module_::import("dataclasses").attr("fields");
  // Further types of values that cannot be changed.
  py::tuple values =
      py::make_tuple(py::module_::import("builtins").attr("complex"), py::module_::import("builtins").attr("slice"),
                     py::module_::import("builtins").attr("range"), py::module_::import("numpy").attr("generic"),
                     py::module_::import("enum").attr("Enum"), py::module_::import("torch").attr("dtype"),
                     py::module_::import("torch").attr("device"));
  py::dict structures;  // what is equal to the nesting -> its capsule
};

const Known& known() {
  static const auto* of_interpreter = new Known();
  return *of_interpreter;
}

bool is_constant(const py::handle& object) {
  return object.is_none() || PyLong_Check(object.ptr()) || PyFloat_Check(object.ptr()) ||
         PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr());
}

// Takes a batch apart: the tensors, the nesting, and an object that is equal for equal nestings.
class Flattener {
 public:
  NamedTensors tensors;
  std::string special;  // the first tensor that is more than its values

  std::pair<Node, py::object> take(const py::handle& object, const std::string& path) {
    if (Py_EnterRecursiveCall(" in a batch") != 0) throw py::error_already_set();  // one that holds itself
    struct Leave {
      ~Leave() { Py_LeaveRecursiveCall(); }
    } const leave;
    if (THPVariable_Check(object.ptr())) return take_tensor(object, path);
    if (is_constant(object)) return take_constant(object);
    if (PyDict_CheckExact(object.ptr())) return take_items(NodeKind::kDict, object, path);
    if (PyList_Check(object.ptr())) return take_sequence(NodeKind::kList, object, path);
    if (PyTuple_Check(object.ptr())) {
      const bool named = py::hasattr(object, "_fields");
      return take_sequence(named ? NodeKind::kNamedTuple : NodeKind::kTuple, object, path);
    }
    if (py::isinstance(object, known().mapping)) return take_items(NodeKind::kMapping, object, path);
    if (py::hasattr(py::type::handle_of(object), "__dataclass_fields__")) return take_dataclass(object, path);
    std::string type = type_name(object);
    if (py::isinstance(object, known().array)) {
      const auto dtype = object.attr("dtype");
      if (std::string("biufc").find(py::cast<std::string>(dtype.attr("kind"))) != std::string::npos)
        return take_tensor(known().as_tensor(object), path);
      type += " of dtype " + py::cast<std::string>(py::str(dtype));
    }
    if (py::isinstance(object, known().values)) return take_constant(object);
    throw DataError("[Batch] '" + (path.empty() ? "batch" : path) + "' is of type " + type +
                    ", expected tensors, arrays, numbers or texts in dicts, lists, tuples or dataclasses; leave it out "
                    "in the loader's collate_fn");
  }

 private:
  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  std::pair<Node, py::object> take_tensor(const py::handle& object, const std::string& path) {
    const auto tensor = py::cast<at::Tensor>(object);
    require<DataError>(tensor.is_leaf(), "[Batch] '" + (path.empty() ? "batch" : path) +
                                             "' is the result of a computation with gradients, which a step does not "
                                             "go back into; detach() it, or do the computation in the loss function");
    tensors.emplace_back(path.empty() ? "batch" : path, tensor.requires_grad() ? tensor.detach() : tensor);
    const py::handle type = py::type::handle_of(object);
    const bool plain = type.ptr() == THPVariableClass || type.is(known().parameter);
    const bool has_attributes = py::len(object.attr("__dict__")) > 0;
    if (special.empty() && (!plain || has_attributes)) special = tensors.back().first;
    return {Node{.requires_grad = tensor.requires_grad()},
            py::make_tuple(plain ? py::handle(Py_None) : type, tensor.requires_grad(), has_attributes)};
  }

  // A number's text tells NaN, 1, 1.0 and True apart.
  static std::pair<Node, py::object> take_constant(const py::handle& object) {
    Node node{.kind = NodeKind::kConstant};
    node.constant = py::reinterpret_borrow<py::object>(object);
    return {std::move(node), py::make_tuple(py::type::handle_of(object), py::repr(object))};
  }

  std::pair<Node, py::object> take_sequence(NodeKind kind, const py::handle& object, const std::string& path) {
    Node node{.kind = kind};
    node.type = py::reinterpret_borrow<py::object>(py::type::handle_of(object));
    py::list equal;
    equal.append(node.type);
    int64_t index = 0;
    for (const py::handle item : object) add(node, equal, item, below(path, std::to_string(index++)));
    if (!PyList_CheckExact(object.ptr()) && !PyTuple_CheckExact(object.ptr())) {
      node.constant = attributes_of(object).attr("copy")();
      equal.append(plain_attributes(object));
    }
    return {std::move(node), py::tuple(equal)};
  }

  std::pair<Node, py::object> take_items(NodeKind kind, const py::handle& object, const std::string& path) {
    Node node{.kind = kind};
    node.type = py::reinterpret_borrow<py::object>(py::type::handle_of(object));
    py::list equal;
    equal.append(node.type);
    for (const py::handle key : py::list(object.attr("keys")())) {
      node.keys.push_back(py::reinterpret_borrow<py::object>(key));
      equal.append(py::make_tuple(py::type::handle_of(key), key));
      add(node, equal, object[key], below(path, py::cast<std::string>(py::str(key))));
    }
    if (kind == NodeKind::kMapping) {
      node.constant = emptied(object, node.keys);
      equal.append(plain_attributes(object));
    }
    return {std::move(node), py::tuple(equal)};
  }

  std::pair<Node, py::object> take_dataclass(const py::handle& object, const std::string& path) {
    Node node{.kind = NodeKind::kDataclass};
    node.type = py::reinterpret_borrow<py::object>(py::type::handle_of(object));
    py::list equal;
    equal.append(node.type);
    py::dict values;  // of fields, in slots too, and what __post_init__ has set besides
    for (const py::handle field : known().fields(object)) {
      const py::object name = field.attr("name");
      if (py::hasattr(object, name)) values[name] = object.attr(name);
    }
    for (const auto& [name, value] : attributes_of(object)) values[name] = value;
    for (const auto& [key, value] : values) {
      node.keys.push_back(py::reinterpret_borrow<py::object>(key));
      equal.append(key);
      add(node, equal, value, below(path, py::cast<std::string>(key)));
    }
    return {std::move(node), py::tuple(equal)};
  }

  static py::dict attributes_of(const py::handle& object) { return py::getattr(object, "__dict__", py::dict()); }

  // A copy is made of the first batch that is nested so.
  static py::object plain_attributes(const py::handle& object) {
    py::list plain;
    for (const auto& [name, value] : attributes_of(object)) {
      if (is_constant(value)) plain.append(py::make_tuple(name, py::repr(value)));
    }
    return py::tuple(plain);
  }

  void add(Node& node, py::list& equal, const py::handle& item, const std::string& path) {
    auto [child, part] = take(item, path);
    node.children.push_back(std::move(child));
    equal.append(part);
  }

  // A copy that holds none of the batch's tensors; none of a mapping that cannot be changed.
  static py::object emptied(const py::handle& object, const std::vector<py::object>& keys) {
    if (!py::hasattr(object, "__setitem__")) return py::none();
    py::object copy = known().copy(object);
    for (const py::object& key : keys) copy[key] = py::none();
    return copy;
  }
};

class Builder {
 public:
  explicit Builder(const NamedTensors& tensors) : next_(tensors.begin()) {}

  py::object make(const Node& node) {
    switch (node.kind) {
      case NodeKind::kTensor: return py::cast(leaf((next_++)->second, node.requires_grad));
      case NodeKind::kConstant: return node.constant;
      case NodeKind::kDict: return make_dict(node);
      case NodeKind::kMapping: {
        if (node.constant.is_none()) return node.type(make_dict(node));
        py::object made = known().copy(node.constant);
        for (std::size_t i = 0; i < node.keys.size(); ++i) made[node.keys[i]] = make(node.children[i]);
        return made;
      }
      case NodeKind::kDataclass: {
        py::object made = node.type.attr("__new__")(node.type);
        const py::object set = py::module_::import("builtins").attr("object").attr("__setattr__");  // frozen ones too
        for (std::size_t i = 0; i < node.keys.size(); ++i) set(made, node.keys[i], make(node.children[i]));
        return made;
      }
      default: return make_sequence(node);
    }
  }

 private:
  static at::Tensor leaf(const at::Tensor& tensor, bool requires_grad) {
    return requires_grad ? tensor.detach().requires_grad_() : tensor;
  }

  py::dict make_dict(const Node& node) {
    py::dict made;
    for (std::size_t i = 0; i < node.keys.size(); ++i) made[node.keys[i]] = make(node.children[i]);
    return made;
  }

  // Of the very type, which need not take items alone.
  py::object make_sequence(const Node& node) {
    py::list items;
    for (const Node& child : node.children) items.append(make(child));
    if (!node.constant) return node.kind == NodeKind::kList ? py::object(items) : py::tuple(items);
    py::object made =
        node.kind == NodeKind::kNamedTuple ? node.type(*items) : node.type.attr("__new__")(node.type, items);
    if (node.kind == NodeKind::kList) py::type::of(items).attr("extend")(made, items);
    if (py::len(node.constant) > 0) made.attr("__dict__").attr("update")(node.constant);
    return made;
  }

  NamedTensors::const_iterator next_;
};

// One object for all batches that are nested alike, so that equal ones have one key.
std::shared_ptr<const BatchStructure> structure_of(Node root, const py::object& equal, const std::string& special) {
  using Shared = std::shared_ptr<const BatchStructure>;
  constexpr std::size_t kMost = 1024;  // a text that is another in each batch would fill the memory
  static int64_t made_so_far = 0;
  py::dict structures = known().structures;
  if (structures.size() >= kMost) structures.clear();
  if (structures.contains(equal)) return *py::cast<py::capsule>(structures[equal]).get_pointer<Shared>();
  auto made = std::make_unique<Shared>(std::make_shared<PythonStructure>(std::move(root), ++made_so_far, special));
  Shared structure = *made;
  structures[equal] = py::capsule(made.release(), [](void* held) { delete static_cast<Shared*>(held); });
  return structure;
}

}  // namespace

Batch to_batch(const py::handle& object) {
  Flattener flattener;
  auto [root, equal] = flattener.take(object, "");
  Batch batch;
  for (const auto& [name, tensor] : flattener.tensors) {
    require<DataError>(!batch.has(name), "[Batch] two tensors of the batch are called '" + name + "'; rename a key");
    batch.set(name, tensor);
  }
  try {
    batch.set_structure(structure_of(std::move(root), equal, flattener.special));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    throw DataError("[Batch] a key of the batch cannot be hashed; use texts or numbers as keys");
  }
  return batch;
}

py::object to_python(const Batch& batch) {
  if (const auto* structure = dynamic_cast<const PythonStructure*>(batch.structure().get())) {
    return Builder(batch.items()).make(structure->root());
  }
  return to_dict(batch.items());
}

}  // namespace duet::python
