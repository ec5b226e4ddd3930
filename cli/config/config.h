#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "../../base/options.h"

namespace duet {

// One node of a configuration: a map, a list, a single value, null, or absent. It is a handle: copies see the same
// tree. Each node knows where it was written ("config.yaml:12", "command line") and its path ("data.train.lr").
//
// Reading a key makes it known. reject_unknown() then turns every key that nobody asked for into an error, so that a
// misspelt key is never ignored. Every error is a ConfigError that names place and path. Null reads as absent.
// Each of its many members reads or refuses one kind of value.
class ConfigNode {
 public:
  enum class Kind { kAbsent, kNull, kValue, kList, kMap };

  ConfigNode();  // absent

  // A whole file, or a text that messages call `source`; the top must be a map.
  //
  // `_base_: FILE` or `_base_: [FILE, ...]` at the top puts it over these files, named relative to its own folder; no
  // two of them may have a top key in common. Maps merge, all else replaces; a map with `_delete_: true` replaces as
  // well.
  //
  // In values, `${env:NAME}` is the environment variable, `${env:NAME,default}` has a default (`oc.env` is the same),
  // and `$${` stands for `${`. Where a variable is the whole value, it is read as a YAML scalar (a number, true, null),
  // else as text.
  static ConfigNode parse_file(const std::string& path);
  static ConfigNode parse_text(const std::string& text, const std::string& source);

  // Sets "model.channels.0=16": a dotted path (a word with dots of its own in quotes), list items by index (one past
  // the end appends), the value read as YAML in place of what was there. Maps that are missing on the way are made.
  // "~model.dropout" deletes what is there; "model._delete_=true" empties the map.
  void override_with(const std::string& assignment, const std::string& origin = "command line");

  Kind kind() const;
  bool exists() const { return kind() != Kind::kAbsent; }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_set() const { return exists() && !is_null(); }
  // Absent, null, or an empty map or list.
  bool is_empty() const;
  const std::string& origin() const;
  const std::string& path() const;
  const std::string& text() const;  // of a single value; empty for other kinds

  // Whether this is a map with that key; it does not become known.
  bool has(const std::string& key) const;
  // The node under `key`; an absent one if there is none. Reading it (or marking it) is up to the caller.
  ConfigNode child(const std::string& key) const;
  // The keys of a map, in order; none for an absent or null node.
  std::vector<std::string> keys() const;
  // The items of the list under `key`; empty if it is absent or null.
  std::vector<ConfigNode> list(const std::string& key) const;
  // As list(), but a single map or value counts as a list of one.
  std::vector<ConfigNode> one_or_list(const std::string& key) const;

  // T: bool, int64_t, double, std::string, or std::vector of the last three. `fallback` becomes part of dump().
  template <class T>
  T read(const std::string& key, const T& fallback) const {
    if (const std::optional<T> value = find<T>(key)) return *value;
    note_default(key, fallback);
    return fallback;
  }
  template <class T>
  std::optional<T> find(const std::string& key) const {  // nothing if absent or null
    const OptionValue found = value(key, detail::kind_of<T>());
    return found.index() == 0 ? std::nullopt : std::optional<T>(std::get<T>(found));
  }
  template <class T>
  T need(const std::string& key) const {  // error if absent or null
    std::optional<T> found = find<T>(key);
    if (!found) fail_missing(key, "add it");
    return *found;
  }
  // What these are made of. Nothing if absent or null; `or_one`: a single value may stand for a list of one.
  OptionValue value(const std::string& key, OptionField::Kind kind, bool or_one = false) const;
  void note_default(const std::string& key, const OptionValue& value) const;

  // Numbers in [min, max], or in a range such as above(0).
  int64_t read_int(const std::string& key, int64_t fallback, int64_t min,
                   int64_t max = std::numeric_limits<int64_t>::max()) const;
  double read_number(const std::string& key, double fallback, const Range& range) const;
  double read_number(const std::string& key, double fallback, double min,
                     double max = std::numeric_limits<double>::infinity()) const {
    return read_number(key, fallback,
                       Range{.low = min, .high = max, .infinite = max > std::numeric_limits<double>::max()});
  }
  // One of `choices`.
  std::string read_choice(const std::string& key, const std::string& fallback,
                          const std::vector<std::string>& choices) const;
  // Bytes: a whole number, or one with a unit: "512 MiB", "2GB".
  int64_t read_bytes(const std::string& key, int64_t fallback) const;
  // A time in seconds: 90, 2h, "1h30m", "30 min", or days:hours:minutes:seconds as Lightning writes it; 0 without the
  // key.
  double read_seconds(const std::string& key) const;

  // Throws for the first key in this node and below that nobody read: place, path, all known keys, the nearest one.
  void reject_unknown() const;
  // Leaves this node out of the reject_unknown() of the nodes above: whoever builds from it later checks it.
  void check_later() const;

  // Runs `check`; a ConfigError or DataError in it is rethrown with this node's place and path in front.
  void located(const std::function<void()>& check) const;
  // fail() for a key that is not there: names an unknown key that looks like it, else ends with `way_out`.
  [[noreturn]] void fail_missing(const std::string& key, const std::string& way_out) const;
  // Throws ConfigError "[Config] <origin>: <path>[.key] <message>".
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;
  // fail() with "is <the value there>, expected <expected>".
  [[noreturn]] void fail_value(const std::string& key, const std::string& expected) const;

  // Everything as YAML, defaults that were read included, with a comment that says where each value came from.
  // Variables of the environment stand by name, since their values may be secrets, but for numbers that were read.
  std::string dump() const;

  struct Data;

 private:
  explicit ConfigNode(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  // Throws unless this node is a map (or nothing at all).
  void require_map() const;

  std::shared_ptr<Data> data_;
};

// What dump() says as one JSON object, for programs that read no YAML. A plain scalar that is a number, true or false
// is one there too; infinities and NaN are texts. Variables of the environment stand by name in what is kept, by value
// in what is only compared.
enum class Variables { kNamed, kFilledIn };
std::string config_json(const ConfigNode& root, Variables variables = Variables::kNamed);

}  // namespace duet
