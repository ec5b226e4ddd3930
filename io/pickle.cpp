#include "io/pickle.h"
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <c10/util/StringUtil.h>
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"

namespace duet::pickle {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw MalformedFile{what}; }

constexpr size_t kGrowth = 3;  // of a list that grows: the old and the new one, half empty

[[noreturn]] void refuse_global(const std::string& global) {
  if (global.starts_with("torch._utils._rebuild_")) {
    throw MalformedFile{
        "it holds a tensor that is sparse, quantized or of a type that duet does not know (its pickle asks for '" +
            global + "')",
        "convert that tensor in Python and save the weights again"};
  }
  throw MalformedFile{"its pickle asks for '" + global + "', which is no part of weights; nothing of it was run",
                      "if you trust where it comes from, open it in Python and save the weights alone: "
                      "torch.save(model.state_dict(), 'weights.pt')"};
}

// The machine that a pickle is a program for (see kOpcodes): the values that it has made so far, and the stack of those
// that it works on. Nothing is taken from below the last mark. Each opcode takes at least one byte and makes at most
// two values.
class Machine {
 public:
  Machine(std::string_view bytes, FileBudget& budget) : rest_(bytes), budget_(budget) {
    for (int64_t i = 0; i < kSmallInts; ++i) tree_.values.push_back(Value{.kind = Kind::kInt, .integer = i});
    for (int64_t i = 0; i < 2; ++i) tree_.values.push_back(Value{.kind = Kind::kBool, .integer = i});
    tree_.values.emplace_back();
  }

  Tree run();

  // A pickle may copy a value that it keeps again and again: what comes of it must stay in proportion to its size.
  void charge(size_t bytes) { budget_.charge(bytes, "its pickle"); }

  void push(Value value) {
    charge(sizeof(Value) + value.text.size() + value.items.size() * sizeof(Id));
    tree_.values.push_back(std::move(value));
    push_again(static_cast<Id>(tree_.values.size() - 1));
  }
  void push(Kind kind, int64_t integer) { push(Value{.kind = kind, .integer = integer}); }
  void push(Kind kind, std::string_view text) { push(Value{.kind = kind, .text = std::string(text)}); }
  void push(Kind kind, std::vector<Id> items) { push(Value{.kind = kind, .items = std::move(items)}); }
  void push_again(Id id) {
    charge(kGrowth * sizeof(Id));
    stack_.push_back(id);
  }
  // Values that never change are made once: in pickles of numbers they are the most, of one or two bytes each.
  void push_none() { push_again(kSmallInts + 2); }
  void push_bool(bool value) { push_again(static_cast<Id>(kSmallInts + (value ? 1 : 0))); }
  void push_int(int64_t value) {
    if (value < 0 || value >= kSmallInts) return push(Kind::kInt, value);
    push_again(static_cast<Id>(value));
  }

  Id pop() {
    if (stack_.size() <= floor()) refuse("its pickle takes more than it has");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id top() const {
    if (stack_.size() <= floor()) refuse("its pickle takes more than it has");
    return stack_.back();
  }
  void mark() {
    charge(kGrowth * sizeof(size_t));
    marks_.push_back(stack_.size());
  }

  std::vector<Id> pop_many(size_t count) {
    if (stack_.size() - floor() < count) refuse("its pickle takes more than it has");
    std::vector<Id> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) refuse("its pickle takes more than it has");
    std::vector<Id> items = pop_many(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }

  std::string_view take(uint64_t bytes) {
    if (bytes > rest_.size()) refuse("its pickle ends in the middle");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  // Of 1 to 8 bytes, little-endian.
  uint64_t number(int bytes) {
    uint64_t value = 0;
    std::memcpy(&value, take(static_cast<uint64_t>(bytes)).data(), static_cast<size_t>(bytes));
    return value;
  }

  std::string line() {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) refuse("its pickle ends in the middle");
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }

  void push_double() {
    uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    push(Value{.kind = Kind::kFloat, .number = std::bit_cast<double>(bits)});
  }

  void push_long(uint64_t bytes) {
    const std::string_view digits = take(bytes);
    if (bytes > 8) return push(Kind::kOpaque, "an integer beyond 64 bits");
    uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push_int(static_cast<int64_t>(value));
  }

  void add(Kind kind, const std::vector<Id>& items) {
    Value& target = at(top());
    if (target.kind == Kind::kOpaque) return;
    if (target.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0))
      refuse("its pickle fills what is no container");
    charge(kGrowth * items.size() * sizeof(Id));
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  void keep(uint64_t index) {
    charge(kMemoBytes);
    memo_[index] = top();
  }
  void keep_next() { keep(memo_.size()); }
  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("its pickle asks for a value that it never made");
    push_again(found->second);
  }

  void check_protocol(uint64_t protocol) {
    if (protocol < 2 || protocol > 5) refuse(c10::str("its pickle has protocol ", protocol, ", expected 2 to 5"));
  }

  void push_named_on_line() {
    const std::string module = line();
    push_global(module + "." + line());
  }
  void push_named_on_stack() {
    const std::string name = text_of(pop());
    push_global(text_of(pop()) + "." + name);
  }
  void call() {
    const Id arguments = pop();
    reduce(pop(), arguments, 0);
  }
  // State beside the value: versions of modules, attributes.
  void skip_state() {
    pop();
    top();
  }

  // ('storage', class, key, device, number of elements)
  void push_storage(Id id) {
    const std::vector<Id>& items = at(id).items;
    const bool is_storage = at(id).kind == Kind::kTuple && items.size() == 5 && at(items[0]).kind == Kind::kText &&
                            at(items[0]).text == "storage" && at(items[1]).kind == Kind::kGlobal &&
                            role_of(at(items[1]).text) == Role::kStorageClass && at(items[2]).kind == Kind::kText &&
                            at(items[4]).kind == Kind::kInt;
    if (!is_storage) refuse("its pickle refers to something that is no storage of a tensor");
    Value storage{
        .kind = Kind::kStorage, .integer = at(items[4]).integer, .text = at(items[2]).text, .items = {items[1]}};
    push(std::move(storage));
  }

 private:
  static constexpr size_t kMemoBytes = 64;  // of an entry and its share of the table
  static constexpr int64_t kSmallInts = 256;

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Value& at(Id id) { return tree_.values[id]; }

  const std::string& text_of(Id id) {
    if (at(id).kind != Kind::kText) refuse("its pickle names something with what is no text");
    return at(id).text;
  }

  void push_global(const std::string& name) {
    if (role_of(name) == Role::kForbidden) refuse_global(name);
    push(Kind::kGlobal, name);
  }

  void reduce(Id function, Id arguments, int depth) {
    if (at(arguments).kind != Kind::kTuple || depth > 4) refuse("its pickle calls something without arguments");
    const std::vector<Id>& items = at(arguments).items;  // until something is pushed
    const Value& called = at(function);
    if (called.kind == Kind::kOpaque) return push(Kind::kOpaque, called.text);
    if (called.kind != Kind::kGlobal) refuse("its pickle calls what is no function");
    const std::string name = called.text;
    const Role role = role_of(name);
    const auto is = [&](size_t index, Kind kind) { return index < items.size() && at(items[index]).kind == kind; };
    switch (role) {
      case Role::kDict:
        if (items.empty()) return push(Kind::kDict, std::vector<Id>());
        if (is(0, Kind::kDict)) return push_again(items[0]);
        if (is(0, Kind::kList)) return push(Kind::kDict, pairs_of(items[0]));
        break;
      case Role::kSequence:
        if (items.empty()) return push(Kind::kTuple, std::vector<Id>());
        if (is(0, Kind::kTuple) || is(0, Kind::kList)) return push_again(items[0]);
        break;
      case Role::kBytes:
        if (is(0, Kind::kText)) return push(Kind::kBytes, at(items[0]).text);
        break;
      case Role::kTensor:
      case Role::kTensorV1:
        if (items.size() < (role == Role::kTensor ? 6u : 4u) || !is(0, Kind::kStorage) || !is(1, Kind::kInt)) break;
        if (!is(2, Kind::kTuple) || !is(3, Kind::kTuple)) break;
        return push(Kind::kTensor, std::vector<Id>(items.begin(), items.begin() + 4));
      case Role::kParameter:
        if (is(0, Kind::kTensor) || is(0, Kind::kOpaque)) return push_again(items[0]);
        break;
      case Role::kSubclass:  // function, type, arguments, state
        if (items.size() == 4) return reduce(items[0], items[2], depth + 1);
        break;
      case Role::kOpaque: return push(Kind::kOpaque, name);
      default: break;
    }
    refuse("its pickle calls '" + name + "' with arguments that torch.save does not write");
  }

  std::vector<Id> pairs_of(Id list) {
    std::vector<Id> items;
    for (const Id pair : at(list).items) {
      const Value& value = at(pair);
      if ((value.kind != Kind::kTuple && value.kind != Kind::kList) || value.items.size() != 2) {
        refuse("its pickle makes a dictionary of what are no pairs");
      }
      charge(kGrowth * value.items.size() * sizeof(Id));
      items.insert(items.end(), value.items.begin(), value.items.end());
    }
    return items;
  }

  std::string_view rest_;
  FileBudget& budget_;
  Tree tree_;
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Id> memo_;
};

struct Opcode {
  unsigned char code;
  void (*run)(Machine& m);
};

using Ids = std::vector<Id>;

// Those that torch.save, and the pickle module under it, write.
constexpr Opcode kOpcodes[] = {
    {'N', [](Machine& m) { m.push_none(); }},                                  // NONE
    {0x88, [](Machine& m) { m.push_bool(true); }},                             // NEWTRUE
    {0x89, [](Machine& m) { m.push_bool(false); }},                            // NEWFALSE
    {'K', [](Machine& m) { m.push_int(static_cast<int64_t>(m.number(1))); }},  // BININT1
    {'M', [](Machine& m) { m.push_int(static_cast<int64_t>(m.number(2))); }},  // BININT2
    {'J', [](Machine& m) { m.push_int(static_cast<int32_t>(m.number(4))); }},  // BININT
    {0x8a, [](Machine& m) { m.push_long(m.number(1)); }},                      // LONG1
    {0x8b, [](Machine& m) { m.push_long(m.number(4)); }},                      // LONG4
    {'G', [](Machine& m) { m.push_double(); }},                                // BINFLOAT
    {0x8c, [](Machine& m) { m.push(Kind::kText, m.take(m.number(1))); }},      // SHORT_BINUNICODE
    {'X', [](Machine& m) { m.push(Kind::kText, m.take(m.number(4))); }},       // BINUNICODE
    {0x8d, [](Machine& m) { m.push(Kind::kText, m.take(m.number(8))); }},      // BINUNICODE8
    {'U', [](Machine& m) { m.push(Kind::kText, m.take(m.number(1))); }},       // SHORT_BINSTRING, a text of Python 2
    {'T', [](Machine& m) { m.push(Kind::kText, m.take(m.number(4))); }},       // BINSTRING
    {'C', [](Machine& m) { m.push(Kind::kBytes, m.take(m.number(1))); }},      // SHORT_BINBYTES
    {'B', [](Machine& m) { m.push(Kind::kBytes, m.take(m.number(4))); }},      // BINBYTES
    {0x8e, [](Machine& m) { m.push(Kind::kBytes, m.take(m.number(8))); }},     // BINBYTES8
    {'(', [](Machine& m) { m.mark(); }},                                       // MARK
    {'}', [](Machine& m) { m.push(Kind::kDict, Ids()); }},                     // EMPTY_DICT
    {']', [](Machine& m) { m.push(Kind::kList, Ids()); }},                     // EMPTY_LIST
    {0x8f, [](Machine& m) { m.push(Kind::kList, Ids()); }},                    // EMPTY_SET
    {')', [](Machine& m) { m.push(Kind::kTuple, Ids()); }},                    // EMPTY_TUPLE
    {'t', [](Machine& m) { m.push(Kind::kTuple, m.pop_to_mark()); }},          // TUPLE
    {0x91, [](Machine& m) { m.push(Kind::kList, m.pop_to_mark()); }},          // FROZENSET
    {0x85, [](Machine& m) { m.push(Kind::kTuple, m.pop_many(1)); }},           // TUPLE1
    {0x86, [](Machine& m) { m.push(Kind::kTuple, m.pop_many(2)); }},           // TUPLE2
    {0x87, [](Machine& m) { m.push(Kind::kTuple, m.pop_many(3)); }},           // TUPLE3
    {'a', [](Machine& m) { m.add(Kind::kList, m.pop_many(1)); }},              // APPEND
    {'e', [](Machine& m) { m.add(Kind::kList, m.pop_to_mark()); }},            // APPENDS
    {0x90, [](Machine& m) { m.add(Kind::kList, m.pop_to_mark()); }},           // ADDITEMS
    {'s', [](Machine& m) { m.add(Kind::kDict, m.pop_many(2)); }},              // SETITEM
    {'u', [](Machine& m) { m.add(Kind::kDict, m.pop_to_mark()); }},            // SETITEMS
    {'q', [](Machine& m) { m.keep(m.number(1)); }},                            // BINPUT
    {'r', [](Machine& m) { m.keep(m.number(4)); }},                            // LONG_BINPUT
    {0x94, [](Machine& m) { m.keep_next(); }},                                 // MEMOIZE
    {'h', [](Machine& m) { m.recall(m.number(1)); }},                          // BINGET
    {'j', [](Machine& m) { m.recall(m.number(4)); }},                          // LONG_BINGET
    {'c', [](Machine& m) { m.push_named_on_line(); }},                         // GLOBAL
    {0x93, [](Machine& m) { m.push_named_on_stack(); }},                       // STACK_GLOBAL
    {'R', [](Machine& m) { m.call(); }},                                       // REDUCE
    {0x81, [](Machine& m) { m.call(); }},                                      // NEWOBJ: a class and its arguments
    {'b', [](Machine& m) { m.skip_state(); }},                                 // BUILD
    {'Q', [](Machine& m) { m.push_storage(m.pop()); }},                        // BINPERSID
    {0x80, [](Machine& m) { m.check_protocol(m.number(1)); }},                 // PROTO
    {0x95, [](Machine& m) { m.number(8); }},                                   // FRAME
};

constexpr unsigned char kStop = '.';

Tree Machine::run() {
  static const auto by_code = [] {
    std::array<void (*)(Machine&), 256> table{};
    for (const Opcode& opcode : kOpcodes) table[opcode.code] = opcode.run;
    return table;
  }();
  while (true) {
    const auto code = static_cast<unsigned char>(take(1)[0]);
    if (code == kStop) {
      tree_.root = pop();
      return std::move(tree_);
    }
    if (by_code[code] == nullptr)
      refuse(c10::str("its pickle has opcode ", static_cast<int>(code), ", which torch.save does not write"));
    by_code[code](*this);
  }
}

struct Global {
  const char* name;
  Role role;
};

// What PyTorch's weights_only loader allows and weights need, and what stands beside the weights in training
// checkpoints (mmengine's message hub, NumPy scores, command lines). Nothing here is ever called.
constexpr Global kGlobals[] = {
    {"collections.OrderedDict", Role::kDict},
    {"collections.Counter", Role::kDict},
    {"torch.Size", Role::kSequence},
    {"builtins.set", Role::kSequence},
    {"__builtin__.set", Role::kSequence},
    {"_codecs.encode", Role::kBytes},
    {"torch.ComplexFloatStorage", Role::kStorageClass},
    {"torch.ComplexDoubleStorage", Role::kStorageClass},
    {"torch.complex64", Role::kDtype},
    {"torch.complex128", Role::kDtype},
    {"torch._utils._rebuild_tensor", Role::kTensorV1},
    {"torch._utils._rebuild_tensor_v2", Role::kTensor},
    {"torch._utils._rebuild_parameter", Role::kParameter},
    {"torch._utils._rebuild_parameter_with_state", Role::kParameter},
    {"torch._tensor._rebuild_from_type_v2", Role::kSubclass},
    {"torch.Tensor", Role::kOpaque},
    {"torch.nn.parameter.Parameter", Role::kOpaque},
    {"torch.device", Role::kOpaque},
    {"numpy.dtype", Role::kOpaque},
    {"numpy.ndarray", Role::kOpaque},
    {"numpy.core.multiarray.scalar", Role::kOpaque},
    {"numpy.core.multiarray._reconstruct", Role::kOpaque},
    {"numpy._core.multiarray.scalar", Role::kOpaque},
    {"numpy._core.multiarray._reconstruct", Role::kOpaque},
    {"mmengine.logging.history_buffer.HistoryBuffer", Role::kOpaque},
    {"__builtin__.getattr", Role::kOpaque},  // of mmengine's HistoryBuffer: names its methods
    {"builtins.getattr", Role::kOpaque},
    {"argparse.Namespace", Role::kOpaque},
    {"pathlib.PosixPath", Role::kOpaque},
    {"datetime.datetime", Role::kOpaque},
};

}  // namespace

Role role_of(const std::string& global) {
  static const auto roles = [] {
    std::unordered_map<std::string, Role> names;
    for (const Global& known : kGlobals) names.emplace(known.name, known.role);
    for (const FileType& type : kFileTypes) {
      names.emplace(std::string("torch.") + type.storage_class, Role::kStorageClass);
      names.emplace(std::string("torch.") + type.dtype, Role::kDtype);
    }
    return names;
  }();
  const auto found = roles.find(global);
  return found == roles.end() ? Role::kForbidden : found->second;
}

Tree parse(std::string_view bytes, FileBudget& budget) { return Machine(bytes, budget).run(); }

}  // namespace duet::pickle
