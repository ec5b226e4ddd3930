#include "cli/config/bounded_yaml.h"
#include <cstddef>
#include <map>
#include <sstream>
#include <vector>
#include <c10/util/StringUtil.h>
#include <yaml-cpp/eventhandler.h>
#include "io/file_io.h"

namespace duet {

namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 20;  // yaml-cpp takes 240 bytes for each of many open brackets
constexpr std::size_t kMaxYamlDepth = 64, kMaxYamlValues = 100'000;

// Counts what the values come to once aliases are followed: they make a small file a huge tree, or an endless one.
class YamlInspector : public YAML::EventHandler {
 public:
  std::vector<YAML::Mark> documents;

  void OnDocumentStart(const YAML::Mark& mark) override { documents.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { leaf(mark, anchor, {1, 0}); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = sizes_.find(anchor);
    if (known == sizes_.end()) refuse(mark);
    add(mark, known->second);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    leaf(mark, anchor, {1, tag.size() + value.size()});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(mark, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Size {
    std::size_t values = 0, bytes = 0;
  };
  struct Open {
    YAML::Mark mark;
    YAML::anchor_t anchor;
    Size size;
  };

  [[noreturn]] static void refuse(const YAML::Mark& mark) {
    throw YamlTooLarge{mark, c10::str("is nested too deeply or refers to itself, expected at most ", kMaxYamlDepth,
                                      " levels, ", kMaxYamlValues, " nodes and ", kMaxText, " bytes of text")};
  }

  void add(const YAML::Mark& mark, const Size& size) {
    Size& sum = open_.empty() ? whole_ : open_.back().size;
    sum.values += size.values;
    sum.bytes += size.bytes;
    if (sum.values > kMaxYamlValues || sum.bytes > kMaxText) refuse(mark);
  }
  void leaf(const YAML::Mark& mark, YAML::anchor_t anchor, const Size& size) {
    if (anchor != 0) sizes_[anchor] = size;
    add(mark, size);
  }
  void open(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (open_.size() >= kMaxYamlDepth) refuse(mark);
    open_.push_back({mark, anchor, {1, 0}});
  }
  void close() {
    const Open closed = open_.back();
    open_.pop_back();
    if (closed.anchor != 0) sizes_[closed.anchor] = closed.size;
    add(closed.mark, closed.size);
  }

  std::vector<Open> open_;
  std::map<YAML::anchor_t, Size> sizes_;
  Size whole_;
};

}  // namespace

std::string read_yaml_text(const std::string& path) { return file_io::read_text(path, kMaxText); }

std::vector<YAML::Mark> inspect_yaml(const std::string& text) {
  if (text.size() > kMaxText)
    throw YamlTooLarge{YAML::Mark(), c10::str("has ", text.size(), " bytes, expected at most ", kMaxText)};
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  YamlInspector inspector;
  while (inspector.documents.size() < 2 && parser.HandleNextDocument(inspector)) {
  }
  return inspector.documents;
}

}  // namespace duet
