#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// An option is described once, beside its struct: name, type, range, unit, meaning. Checking a struct, reading it from
// a config, `duet help` and comparing it over ranks follow from that. A struct with a description has a static
// fields().
namespace duet {

// What a field holds; monostate: an optional one that holds nothing. An enum is the word for it.
using OptionValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                                 std::vector<double>, std::vector<std::string>>;

// The values that a number, or each number of a list, may have. NaN is in none.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;   // low itself is out
  bool below_high = false;  // high itself is out
  bool infinite = false;    // infinity is in

  constexpr Range or_infinity() const {
    Range range = *this;
    range.infinite = true;
    return range;
  }
  bool holds(double value) const;
};
constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range above(double low) { return {.low = low, .above_low = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }  // both ends are in
constexpr Range up_to_below(double low, double high) { return {.low = low, .high = high, .below_high = true}; }
constexpr Range inside(double low, double high) {
  return {.low = low, .high = high, .above_low = true, .below_high = true};
}

struct OptionField {
  enum class Kind { kBool, kInteger, kNumber, kText, kIntegers, kNumbers, kTexts, kOther };

  std::string name;     // of the member
  std::string meaning;  // with its unit
  Kind kind = Kind::kOther;
  bool optional = false;               // std::optional: may hold nothing
  std::size_t count = 0;               // length of a list; 0: any
  Range range{};                       // of numbers
  std::vector<std::string> choices{};  // of a text; empty: any
  std::string expected{};              // in messages, instead of what the range says
  std::string type{};                  // in help, where the kind says too little

  // What only configs have.
  std::string key{};        // its name there
  std::string other_key{};  // a second one
  std::string section{};    // a map that the key may stand in, instead of beside the others
  bool required = false;    // the key must be there
  bool or_one = false;      // a single value may stand for a list of one
  bool by_hand = false;     // whoever reads the config reads it: its form in YAML is another
  std::string fallback{};   // its default there

  using Words = std::vector<std::string>;
  // Where the member of a struct is; empty for a key that configs have and the struct has not.
  std::function<void*(void* options)> member{};
  OptionValue (*read)(const void* member, const Words& choices) = nullptr;
  void (*write)(void* member, const OptionValue& value, const Words& choices) = nullptr;

  bool is_member() const { return read != nullptr; }
  bool is_integer() const { return kind == Kind::kInteger || kind == Kind::kIntegers; }
  OptionValue get(const void* options) const { return read(member(const_cast<void*>(options)), choices); }
  void set(void* options, const OptionValue& value) const { write(member(options), value, choices); }

  OptionField& in(const Range& values) { return range = values, *this; }
  OptionField& one_of(std::vector<std::string> words) { return choices = std::move(words), *this; }
  OptionField& expects(std::string text) { return expected = std::move(text), *this; }
  OptionField& called(std::string text) { return type = std::move(text), *this; }
  OptionField& keyed(std::string text) { return key = std::move(text), *this; }
  OptionField& also_keyed(std::string text) { return other_key = std::move(text), *this; }
  OptionField& or_within(std::string map) { return section = std::move(map), *this; }
  OptionField& needed() { return required = true, *this; }
  OptionField& one_or_list() { return or_one = true, *this; }
  // `form`: what it is in a config.
  OptionField& read_by_hand(std::string form, std::string by_default = "") {
    return by_hand = true, type = std::move(form), fallback = std::move(by_default), *this;
  }
};

template <class Options>
class FieldAdder;

// The description of one options struct.
class OptionFields {
 public:
  OptionFields() = default;
  // `name`: what messages call the struct. `describe(add)` adds the fields, in the order of help.
  template <class Options, class Describe>
  static OptionFields of(std::string name, Describe describe) {
    OptionFields fields;
    fields.name_ = std::move(name);
    describe(FieldAdder<Options>(fields));
    return fields;
  }

  const std::string& name() const { return name_; }
  const std::string& about() const { return about_; }  // a sentence on what the options belong to; may be empty
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  const OptionField* find(const std::string& name) const;  // null if there is none

  // Throws ConfigError "[<name>] <field> is <value>, expected <range>" for the first field out of its range, then what
  // the rules throw.
  void check(const void* options) const;
  // A line "<field>: <value>" for each, numbers with all their digits.
  std::string lines(const void* options) const;

 private:
  template <class Options>
  friend class FieldAdder;
  std::string name_, about_;
  std::vector<OptionField> fields_;
  std::vector<std::function<void(const void*)>> rules_;
};

// "1e-05", "[1, 2]", "none".
std::string text_of(const OptionValue& value);
// Throws as OptionFields::check does. `name` may be that of an element: "betas[0]".
void check_option(const std::string& struct_name, const OptionField& field, const OptionValue& value);
// Its choices, without the empty one that stands for none.
std::vector<std::string> words_of(const OptionField& field);
// "a number in [0, 1)"
std::string expected_of(const OptionField& field);

namespace detail {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct ArrayLength : std::integral_constant<std::size_t, 0> {};
template <class T, std::size_t count>
struct ArrayLength<std::array<T, count>> : std::integral_constant<std::size_t, count> {};

template <class T>
constexpr OptionField::Kind kind_of() {
  using Kind = OptionField::Kind;
  if constexpr (IsOptional<T>::value)
    return kind_of<typename T::value_type>();
  else if constexpr (std::is_same_v<T, bool>)
    return Kind::kBool;
  else if constexpr (std::is_same_v<T, std::string> || std::is_enum_v<T>)
    return Kind::kText;
  else if constexpr (std::is_integral_v<T>)
    return Kind::kInteger;
  else if constexpr (std::is_floating_point_v<T>)
    return Kind::kNumber;
  else if constexpr (std::is_same_v<T, std::vector<int64_t>>)
    return Kind::kIntegers;
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return Kind::kTexts;
  else
    return Kind::kNumbers;
}

// Compiled once for a type, not for each member that is of it.
template <class T>
OptionValue read_member(const void* from, const std::vector<std::string>& words) {
  const T& member = *static_cast<const T*>(from);
  if constexpr (IsOptional<T>::value)
    return member ? read_member<typename T::value_type>(&*member, words) : OptionValue();
  else if constexpr (std::is_enum_v<T>)
    return words.at(static_cast<std::size_t>(member));
  else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
    return static_cast<int64_t>(member);
  else if constexpr (ArrayLength<T>::value > 0)
    return std::vector<double>(member.begin(), member.end());
  else
    return member;
}

std::size_t place_of(const std::string& word, const std::vector<std::string>& words);

template <class T>
void write_member(void* to, const OptionValue& value, const std::vector<std::string>& words) {
  T& member = *static_cast<T*>(to);
  if constexpr (IsOptional<T>::value) {
    member.reset();
    if (value.index() != 0) write_member<typename T::value_type>(&member.emplace(), value, words);
  } else if constexpr (std::is_enum_v<T>) {
    member = static_cast<T>(place_of(std::get<std::string>(value), words));
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    member = static_cast<T>(std::get<int64_t>(value));
  } else if constexpr (ArrayLength<T>::value > 0) {
    for (std::size_t i = 0; i < member.size(); ++i) member[i] = std::get<std::vector<double>>(value).at(i);
  } else {
    member = std::get<T>(value);
  }
}

}  // namespace detail

template <class Options>
class FieldAdder {
 public:
  explicit FieldAdder(OptionFields& fields) : fields_(fields) {}

  // What the whole is or does, in one sentence. Models say what they read, datasets what they give: name, dtype, shape.
  void about(std::string text) const { fields_.about_ = std::move(text); }

  // `member`: a pointer to it, or a function that gives a reference to it within the options. An enum's words are those
  // of `words`, in the order of its values.
  template <class Member>
  OptionField& operator()(std::string name, Member member, std::string meaning,
                          std::vector<std::string> words = {}) const {
    using T = std::remove_reference_t<std::invoke_result_t<Member, Options&>>;
    OptionField& field = this->field(std::move(name), std::move(meaning));
    field.kind = detail::kind_of<T>();
    field.optional = detail::IsOptional<T>::value;
    field.count = detail::ArrayLength<T>::value;
    field.choices = std::move(words);
    field.member = [member](void* options) -> void* {
      return std::addressof(std::invoke(member, *static_cast<Options*>(options)));
    };
    field.read = detail::read_member<T>;
    field.write = detail::write_member<T>;
    return field;
  }
  // What no single field says: throws ConfigError.
  void rule(std::function<void(const Options& options)> check) const {
    fields_.rules_.push_back(
        [check = std::move(check)](const void* options) { check(*static_cast<const Options*>(options)); });
  }
  // A key of configs that is no member; `form` as in read_by_hand().
  OptionField& key(std::string name, std::string form, std::string meaning, std::string by_default = "") const {
    return field(std::move(name), std::move(meaning)).read_by_hand(std::move(form), std::move(by_default));
  }

 private:
  OptionField& field(std::string name, std::string meaning) const {
    fields_.fields_.push_back({.name = name, .meaning = std::move(meaning), .key = name});
    return fields_.fields_.back();
  }

  OptionFields& fields_;
};

// What the fields() of a struct returns: its description, made at the first call. `add_fields(add)` adds the fields;
// each lambda is a type of its own, so each gets its own description.
template <class Options, class AddFields>
const OptionFields& described(const char* name, AddFields add_fields) {
  static const OptionFields kFields = OptionFields::of<Options>(name, std::move(add_fields));
  return kFields;
}

template <class Options>
concept Described = requires { Options::fields(); };

// What hooks, metrics and the like do with the options that they are made with: ConfigError for those out of range.
template <Described Options>
void check_options(const Options& options) {
  Options::fields().check(&options);
}

// A value of any described struct.
class AnyOptions {
 public:
  template <Described Options>
  explicit AnyOptions(Options options)
      : fields_(&Options::fields()),
        values_(std::make_shared<Options>(std::move(options))),
        copy_([](const void* values) {
          return std::static_pointer_cast<void>(std::make_shared<Options>(*static_cast<const Options*>(values)));
        }) {}
  explicit AnyOptions(const OptionFields& no_fields) : fields_(&no_fields) {}

  const OptionFields& fields() const { return *fields_; }
  // Null if it is of another struct.
  template <Described Options>
  const Options* get_if() const {
    return fields_ == &Options::fields() ? static_cast<const Options*>(values_.get()) : nullptr;
  }
  const void* data() const { return values_.get(); }
  void* mutable_data();
  void check() const { fields_->check(data()); }
  // Throws ConfigError if there is no such field.
  void set(const std::string& name, const OptionValue& value);

 private:
  const OptionFields* fields_;
  std::shared_ptr<void> values_;  // may be shared with copies until it is changed
  std::shared_ptr<void> (*copy_)(const void* values) = nullptr;
};

}  // namespace duet
