#include "io/bounded_json.h"
#include <cstddef>
#include <limits>
#include <set>
#include <type_traits>
#include <vector>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "io/file_io.h"
#include "io/file_memory.h"

namespace duet {

namespace {

constexpr std::size_t kMaxJsonDepth = 64;
constexpr uint64_t kJsonTimes = 16;                            // what is written by duet takes 4 to 8 times its text
constexpr uint64_t kJsonValueBytes = 64, kJsonKeyBytes = 112;  // of a document, a growing array and the set of keys

// Looks at a document before memory is taken for it.
template <class Json>
class JsonInspector : public nlohmann::json_sax<Json> {
 public:
  JsonInspector(std::size_t bytes, const std::string& what) : what_(what), budget_(bytes, kJsonTimes) {}

  bool null() override { return value(0); }
  bool boolean(bool /*value*/) override { return value(0); }
  bool number_integer(typename Json::number_integer_t /*value*/) override { return value(0); }
  bool number_unsigned(typename Json::number_unsigned_t /*value*/) override { return value(0); }
  bool number_float(typename Json::number_float_t /*value*/, const std::string& /*text*/) override { return value(0); }
  bool string(std::string& text) override { return value(text.size()); }
  bool binary(typename Json::binary_t& bytes) override { return value(bytes.size()); }
  bool start_array(std::size_t /*elements*/) override { return open(); }
  bool end_array() override { return close(); }
  bool start_object(std::size_t /*elements*/) override { return open(); }
  bool end_object() override { return close(); }

  bool key(std::string& key) override {
    // An ordered object looks each key up among all before it.
    constexpr std::size_t kMaxKeys =
        std::is_same_v<Json, nlohmann::json> ? std::numeric_limits<std::size_t>::max() : 20'000;
    budget_.charge(kJsonKeyBytes + 2 * key.size(), what_.c_str());
    expect_file(keys_.back().insert(key).second, what_, " has the key '", one_line(key), "' twice");
    expect_file(keys_.back().size() <= kMaxKeys, what_, " has an object of more than ", kMaxKeys, " keys");
    return true;
  }

  bool parse_error(std::size_t /*at*/, const std::string& /*token*/, const nlohmann::json::exception& error) override {
    throw MalformedFile{c10::str(what_, " is not JSON: ", one_line(error.what()))};
  }

 private:
  bool value(std::size_t bytes) {
    budget_.charge(kJsonValueBytes + bytes, what_.c_str());
    return true;
  }
  bool open() {
    if (keys_.size() >= kMaxJsonDepth)
      throw MalformedFile{c10::str(what_, " is nested too deep, expected at most ", kMaxJsonDepth, " levels")};
    keys_.emplace_back();
    return value(0);
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& what_;
  FileBudget budget_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

template <class Json>
Json parse_json(const std::string& text, const std::string& what) try {
  JsonInspector<Json> inspector(text.size(), what);
  Json::sax_parse(text, &inspector);
  return Json::parse(text);
} catch (const nlohmann::json::exception& error) {
  throw MalformedFile{c10::str(what, " is not JSON: ", one_line(error.what()))};
}

void parse_json_entries(const std::string& text, const std::string& what, const TakeJson& take) {
  using nlohmann::json;
  JsonInspector<json> inspector(text.size(), what);
  json::sax_parse(text, &inspector);
  std::string name;
  static_cast<void>(json::parse(text, [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (depth == 1 && event == Event::key) name = value.get<std::string>();
    const bool is_whole = event == Event::value || event == Event::object_end || event == Event::array_end;
    if (depth != 1 || !is_whole) return true;
    take(name, value);
    return false;
  }));
}

template <class Json>
Json parse_json_or_discard(const std::string& text) {
  try {
    return parse_json<Json>(text, "it");
  } catch (const MalformedFile&) {
    return Json(Json::value_t::discarded);
  }
}

template nlohmann::json parse_json(const std::string&, const std::string&);
template nlohmann::ordered_json parse_json(const std::string&, const std::string&);
template nlohmann::json parse_json_or_discard(const std::string&);
template nlohmann::ordered_json parse_json_or_discard(const std::string&);

}  // namespace duet
