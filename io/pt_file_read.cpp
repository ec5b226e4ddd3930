#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/pickle.h"
#include "io/plain_tensor.h"
#include "io/pt_file.h"
#include "io/read_file.h"
#include "io/zip_archive.h"

namespace duet {

namespace {

using pickle::Id;
using pickle::Kind;
using pickle::Tree;
using pickle::Value;
using zip_archive::Entry;
using zip_archive::Reader;

constexpr uint64_t kMaxPickle = 100'000'000;
constexpr size_t kMaxDims = 64;
constexpr int kMaxNesting = 64;
constexpr uint64_t kPickleTimes = 16, kTensorTimes = 4;
// Of an entry of the state, which is copied twice; and of a value looked at, as one may stand in many places.
constexpr uint64_t kStateValueBytes = 400, kStateTensorBytes = 640, kVisitBytes = 64;

[[noreturn]] void refuse(const std::string& what) { throw MalformedFile{what}; }

at::ScalarType storage_dtype(const std::string& storage_class) {
  for (const FileType& known : kFileTypes) {
    if (storage_class == std::string("torch.") + known.storage_class) return known.type;
  }
  throw MalformedFile{"it holds tensors of " + storage_class + ", a type that duet does not know",
                      "convert them in Python, e.g. complex128 with torch.view_as_real"};
}

std::vector<int64_t> counts(const Tree& tree, Id tuple, const std::string& name) {
  const std::vector<Id>& items = tree[tuple].items;
  if (items.size() > kMaxDims) refuse(c10::str("tensor '", name, "' has ", items.size(), " dimensions"));
  std::vector<int64_t> numbers;
  for (const Id item : items) {
    if (tree[item].kind != Kind::kInt || tree[item].integer < 0)
      refuse("tensor '" + name + "' has a size that is no count");
    numbers.push_back(tree[item].integer);
  }
  return numbers;
}

at::Tensor build_tensor(const Tree& tree, const Value& value, const std::string& name,
                        zip_archive::Storages& storages) {
  const Value& used = tree[value.items[0]];
  const at::Tensor& storage = storages.get(used.text, storage_dtype(tree[used.items[0]].text));
  expect_file(storage.numel() == used.integer, "storage '", used.text, "' has ", storage.numel(),
              " elements, expected ", used.integer);
  return view_of_storage(storage, tree[value.items[1]].integer,
                         {counts(tree, value.items[2], name), counts(tree, value.items[3], name)}, name);
}

class Flattener {
 public:
  struct Budgets {
    FileBudget pickle, tensors;
  };

  Flattener(const Tree& tree, zip_archive::Storages& storages, Budgets& budgets, PtFile& file)
      : tree_(tree), storages_(storages), budgets_(budgets), file_(file) {}

  void run() {
    const Value& top = tree_[tree_.root];
    if (top.kind != Kind::kDict) {
      throw MalformedFile{"it holds no dictionary of tensors",
                          "save one in Python: torch.save(model.state_dict(), 'weights.pt')"};
    }
    for (size_t i = 0; i + 1 < top.items.size(); i += 2) {
      const std::optional<std::string> key = key_of(top.items[i]);
      if (key && tree_[top.items[i + 1]].kind == Kind::kDict) keep_name(*key, file_.groups);
    }
    visit(tree_.root, "", 0);
  }

 private:
  std::optional<std::string> key_of(Id id) const {
    const Value& key = tree_[id];
    if (key.kind == Kind::kText) return key.text;
    if (key.kind == Kind::kInt) return std::to_string(key.integer);
    return std::nullopt;
  }

  void visit(Id id, const std::string& name, int depth) {
    if (depth > kMaxNesting) refuse("'" + name.substr(0, 100) + "' is nested too deeply, expected at most 64 levels");
    budgets_.pickle.charge(kVisitBytes + name.size(), "its pickle");
    const Value& value = tree_[id];
    switch (value.kind) {
      case Kind::kDict: return visit_dict(value, name, depth);
      case Kind::kList:
      case Kind::kTuple:
        for (size_t i = 0; i < value.items.size(); ++i)
          visit(value.items[i], below(name, std::to_string(i), depth), depth + 1);
        return;
      case Kind::kTensor:
        check_new(name, kStateTensorBytes);
        file_.state.set(name, charged(build_tensor(tree_, value, name, storages_)));
        return;
      case Kind::kNone: return;
      case Kind::kBool: return set(name, value.integer != 0);
      case Kind::kInt: return set(name, value.integer);
      case Kind::kFloat: return set(name, value.number);
      case Kind::kText:
      case Kind::kBytes: budgets_.pickle.charge(value.text.size(), "its pickle"); return set(name, value.text);
      case Kind::kGlobal:
        if (pickle::role_of(value.text) == pickle::Role::kDtype) return set(name, value.text);
        break;
      default: break;
    }
    keep_name(name, file_.passed_over);
  }

  void visit_dict(const Value& dict, const std::string& name, int depth) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      if (const std::optional<std::string> key = key_of(dict.items[i])) {
        visit(dict.items[i + 1], below(name, *key, depth), depth + 1);
      } else {
        keep_name(below(name, "?", depth), file_.passed_over);
      }
    }
  }

  // A long name may stand in a pickle once and be that of many values.
  void keep_name(const std::string& name, std::vector<std::string>& names) {
    budgets_.pickle.charge(kStateValueBytes + name.size(), "its pickle");
    names.push_back(name);
  }

  // An empty key is a key too: mmengine's and PyTorch's `_metadata` have one.
  static std::string below(const std::string& name, const std::string& key, int depth) {
    return depth == 0 ? key : name + "." + key;
  }

  // A view may repeat the elements of its storage: what a copy of it takes counts. Tensors that share all of their
  // memory are copied once.
  at::Tensor charged(at::Tensor tensor) {
    const bool is_known = tensor.is_contiguous() &&
                          !copied_.emplace(tensor.const_data_ptr(), tensor.numel(), tensor.scalar_type()).second;
    if (!is_known) budgets_.tensors.charge(tensor.nbytes(), "what its tensors hold");
    return tensor;
  }

  void check_new(const std::string& name, uint64_t bytes) {
    budgets_.pickle.charge(bytes + 4 * name.size(), "its pickle");
    if (file_.state.has(name))
      refuse("two of its values are called '" + name + "' once dictionaries are joined with dots");
  }

  template <class T>
  void set(const std::string& name, T value) {
    check_new(name, kStateValueBytes);
    file_.state.set(name, StateValue(std::move(value)));
  }

  const Tree& tree_;
  zip_archive::Storages& storages_;
  Budgets& budgets_;
  PtFile& file_;
  std::set<std::tuple<const void*, int64_t, at::ScalarType>> copied_;
};

// "archive" for the entry "archive/data.pkl".
std::string find_folder(const Reader& archive) {
  std::string folder;
  for (const Entry& entry : archive.entries()) {
    const size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash) != "/data.pkl") continue;
    if (!folder.empty()) refuse("it has several entries data.pkl");
    folder = entry.name.substr(0, slash);
  }
  if (folder.empty()) refuse("it is a ZIP archive without the entry data.pkl that torch.save writes");
  return folder;
}

void refuse_bare_pickle(const std::string& path) {
  const file_io::FileReader file(path);
  char first = 0;
  file.read(0, &first, std::min<uint64_t>(file.size(), 1));
  if (first != '\x80') return;
  throw MalformedFile{
      "it is a bare pickle, as torch.save wrote before PyTorch 1.6 or pickle.dump writes, expected a ZIP archive",
      "if you trust where it comes from, load it in Python and save it again with torch.save"};
}

PtFile read_archive(const std::string& path) {
  refuse_bare_pickle(path);
  const Reader archive(path);
  const std::string folder = find_folder(archive);
  if (archive.find(folder + "/constants.pkl") != nullptr) {
    throw MalformedFile{
        "it is a TorchScript program (torch.jit.save, or torch::save of C++), not a dictionary of weights",
        "use it as the model (model: {type: torchscript, path: ...}), or save its weights in Python: "
        "torch.save(torch.jit.load(path).state_dict(), 'weights.pt')"};
  }
  if (archive.text_of(folder + "/byteorder", 16) == "big") {
    throw MalformedFile{"it was written on a big-endian machine",
                        "load it in Python and save it again on a little-endian one"};
  }
  const std::string program = archive.text_of(folder + "/data.pkl", kMaxPickle);
  Flattener::Budgets budgets{FileBudget(program.size(), kPickleTimes), FileBudget(archive.size(), kTensorTimes)};
  const Tree tree = pickle::parse(program, budgets.pickle);
  zip_archive::Storages storages(archive, folder + "/data/");
  PtFile file;
  Flattener(tree, storages, budgets, file).run();
  return file;
}

}  // namespace

PtFile read_pt(const std::string& path) {
  return read_file("pt", path, [&] { return read_archive(path); });
}

}  // namespace duet
