#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace duet {
class FileBudget;
}

// Python pickles as torch.save writes them. Reading one runs no code: it builds plain data, and a class or function
// that is not on the list in kGlobals ends it.
namespace duet::pickle {

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kDict,
  kGlobal,
  kStorage,
  kTensor,
  kOpaque,  // what only Python can hold: an integer beyond 64 bits, an object of a harmless class
};

using Id = uint32_t;

struct Value {
  Kind kind = Kind::kNone;
  int64_t integer = 0;  // bool, int; storage: its number of elements
  double number = 0;
  std::string text{};  // text, bytes; global: "torch.FloatStorage"; storage: its key; opaque: what it is
  // list, tuple; dict: keys and values in turn; storage: its class; tensor: storage, offset, sizes, strides
  std::vector<Id> items{};
};

// Values refer to one another by index, so that one may occur in several places, or in itself.
struct Tree {
  std::deque<Value> values;
  Id root = 0;

  const Value& operator[](Id id) const { return values[id]; }
};

// What the reader does with a class or function that a pickle names.
enum class Role : uint8_t {
  kForbidden,
  kDict,
  kSequence,
  kBytes,
  kStorageClass,
  kDtype,
  kTensor,
  kTensorV1,
  kParameter,
  kSubclass,
  kOpaque,  // known and without harm, but of no use here: its objects become Kind::kOpaque
};
Role role_of(const std::string& global);

// Throws MalformedFile; what it builds is charged to `budget`.
Tree parse(std::string_view bytes, FileBudget& budget);

}  // namespace duet::pickle
