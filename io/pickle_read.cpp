#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <c10/util/StringUtil.h>
#include "io/malformed.h"
#include "io/pickle.h"
#include "io/pickle_stack.h"

namespace duet::pickle {

namespace {

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

// The machine that a pickle is a program for. Each opcode takes at least one byte and makes at most two values.
class Machine : private Stack {
 public:
  explicit Machine(std::string_view bytes) : Stack(bytes.size()), rest_(bytes) {}

  Tree run() {
    while (true) {
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      const bool known = push_number(opcode) || push_text(opcode) || push_container(opcode) || fill_container(opcode) ||
                         use_memo(opcode) || call(opcode) || frame(opcode);
      if (!known)
        refuse(c10::str("its pickle has opcode ", static_cast<int>(opcode), ", which torch.save does not write"));
    }
    return finish(pop());
  }

 private:
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

  bool push_number(unsigned char opcode) {
    switch (opcode) {
      case 'N':  // NONE
        return push(Kind::kNone, 0);
      case 0x88:  // NEWTRUE
        return push(Kind::kBool, 1);
      case 0x89:  // NEWFALSE
        return push(Kind::kBool, 0);
      case 'K':  // BININT1
        return push(Kind::kInt, static_cast<int64_t>(number(1)));
      case 'M':  // BININT2
        return push(Kind::kInt, static_cast<int64_t>(number(2)));
      case 'J':  // BININT
        return push(Kind::kInt, static_cast<int32_t>(number(4)));
      case 0x8a:  // LONG1
        return push_long(number(1));
      case 0x8b:  // LONG4
        return push_long(number(4));
      case 'G':  // BINFLOAT
        return push(Value{.kind = Kind::kFloat, .number = big_endian_double(take(8))});
      default: return false;
    }
  }

  static double big_endian_double(std::string_view bytes) {
    uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
    return std::bit_cast<double>(bits);
  }

  // Two's complement of any length.
  bool push_long(uint64_t bytes) {
    const std::string_view digits = take(bytes);
    if (bytes > 8) return push(Kind::kOpaque, "an integer beyond 64 bits");
    uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return push(Kind::kInt, static_cast<int64_t>(value));
  }

  bool push_text(unsigned char opcode) {
    switch (opcode) {
      case 0x8c:  // SHORT_BINUNICODE
        return push(Kind::kText, take(number(1)));
      case 'X':  // BINUNICODE
        return push(Kind::kText, take(number(4)));
      case 0x8d:  // BINUNICODE8
        return push(Kind::kText, take(number(8)));
      case 'U':  // SHORT_BINSTRING, a text of Python 2
        return push(Kind::kText, take(number(1)));
      case 'T':  // BINSTRING
        return push(Kind::kText, take(number(4)));
      case 'C':  // SHORT_BINBYTES
        return push(Kind::kBytes, take(number(1)));
      case 'B':  // BINBYTES
        return push(Kind::kBytes, take(number(4)));
      case 0x8e:  // BINBYTES8
        return push(Kind::kBytes, take(number(8)));
      default: return false;
    }
  }

  bool push_container(unsigned char opcode) {
    switch (opcode) {
      case '(':  // MARK
        return mark();
      case '}':  // EMPTY_DICT
        return push(Kind::kDict, std::vector<Id>());
      case ']':   // EMPTY_LIST
      case 0x8f:  // EMPTY_SET
        return push(Kind::kList, std::vector<Id>());
      case ')':  // EMPTY_TUPLE
        return push(Kind::kTuple, std::vector<Id>());
      case 't':  // TUPLE
        return push(Kind::kTuple, pop_to_mark());
      case 0x91:  // FROZENSET
        return push(Kind::kList, pop_to_mark());
      case 0x85:  // TUPLE1
        return push(Kind::kTuple, pop_many(1));
      case 0x86:  // TUPLE2
        return push(Kind::kTuple, pop_many(2));
      case 0x87:  // TUPLE3
        return push(Kind::kTuple, pop_many(3));
      default: return false;
    }
  }

  bool fill_container(unsigned char opcode) {
    switch (opcode) {
      case 'a':  // APPEND
        return add(Kind::kList, pop_many(1));
      case 'e':   // APPENDS
      case 0x90:  // ADDITEMS
        return add(Kind::kList, pop_to_mark());
      case 's':  // SETITEM
        return add(Kind::kDict, pop_many(2));
      case 'u':  // SETITEMS
        return add(Kind::kDict, pop_to_mark());
      default: return false;
    }
  }

  bool add(Kind kind, const std::vector<Id>& items) {
    Value& target = at(top());
    if (target.kind == Kind::kOpaque) return true;
    if (target.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0))
      refuse("its pickle fills what is no container");
    charge(items.size() * sizeof(Id));
    target.items.insert(target.items.end(), items.begin(), items.end());
    return true;
  }

  bool use_memo(unsigned char opcode) {
    switch (opcode) {
      case 'q':  // BINPUT
        memo_[number(1)] = top();
        return true;
      case 'r':  // LONG_BINPUT
        memo_[number(4)] = top();
        return true;
      case 0x94:  // MEMOIZE
        memo_.emplace(memo_.size(), top());
        return true;
      case 'h':  // BINGET
        return recall(number(1));
      case 'j':  // LONG_BINGET
        return recall(number(4));
      default: return false;
    }
  }
  bool recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("its pickle asks for a value that it never made");
    return push_again(found->second);
  }

  bool frame(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const uint64_t protocol = number(1);
        if (protocol < 2 || protocol > 5) refuse(c10::str("its pickle has protocol ", protocol, ", expected 2 to 5"));
        return true;
      }
      case 0x95:  // FRAME
        number(8);
        return true;
      default: return false;
    }
  }

  bool call(unsigned char opcode) {
    switch (opcode) {
      case 'c': {  // GLOBAL
        const std::string module = line();
        return push_global(module + "." + line());
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = text_of(pop());
        return push_global(text_of(pop()) + "." + name);
      }
      case 'R':     // REDUCE
      case 0x81: {  // NEWOBJ: a class and its arguments say the same as a function and its arguments
        const Id arguments = pop();
        return reduce(pop(), arguments, 0);
      }
      case 'b': {  // BUILD
        pop();     // state beside the value: versions of modules, attributes
        const Kind kind = at(top()).kind;
        if (kind != Kind::kDict && kind != Kind::kOpaque && kind != Kind::kTensor)
          refuse("its pickle sets what has no state");
        return true;
      }
      case 'Q':  // BINPERSID
        return push_storage(pop());
      default: return false;
    }
  }

  const std::string& text_of(Id id) {
    if (at(id).kind != Kind::kText) refuse("its pickle names something with what is no text");
    return at(id).text;
  }

  bool push_global(const std::string& name) {
    if (role_of(name) == Role::kForbidden) refuse_global(name);
    return push(Kind::kGlobal, name);
  }

  bool reduce(Id function, Id arguments, int depth) {
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
        if (items.size() < (role == Role::kTensor ? 6u : 4u) || !is(0, Kind::kStorage) || !is(1, Kind::kInt) ||
            !is(2, Kind::kTuple) || !is(3, Kind::kTuple)) {
          break;
        }
        return push(Kind::kTensor, std::vector<Id>(items.begin(), items.begin() + 4));
      case Role::kParameter:
        if (is(0, Kind::kTensor)) return push_again(items[0]);
        if (is(0, Kind::kOpaque)) return push_again(items[0]);
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
      items.insert(items.end(), value.items.begin(), value.items.end());
      if (items.size() * sizeof(Id) > budget()) charge(budget() + 1);
    }
    return items;
  }

  // ('storage', class, key, device, number of elements)
  bool push_storage(Id id) {
    const std::vector<Id>& items = at(id).items;
    const bool is_storage = at(id).kind == Kind::kTuple && items.size() == 5 && at(items[0]).kind == Kind::kText &&
                            at(items[0]).text == "storage" && at(items[1]).kind == Kind::kGlobal &&
                            role_of(at(items[1]).text) == Role::kStorageClass && at(items[2]).kind == Kind::kText &&
                            at(items[4]).kind == Kind::kInt;
    if (!is_storage) refuse("its pickle refers to something that is no storage of a tensor");
    Value storage{
        .kind = Kind::kStorage, .integer = at(items[4]).integer, .text = at(items[2]).text, .items = {items[1]}};
    return push(std::move(storage));
  }

  std::string_view rest_;
  std::unordered_map<uint64_t, Id> memo_;
};

}  // namespace

Tree parse(std::string_view bytes) { return Machine(bytes).run(); }

}  // namespace duet::pickle
