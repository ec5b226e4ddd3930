#include "cli/runs/report_page.h"
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

namespace duet {

namespace {

// All files whose names end like this, one after the other.
std::string files_ending_in(std::string_view ending) {
  std::string text;
  for (const auto& [name, content] : report_page_files()) {
    if (name.ends_with(ending)) text += content;
  }
  return text;
}

// JSON that may stand inside <script>: nothing in it looks like markup, whatever runs are called.
std::string harmless_json(const nlohmann::ordered_json& json) {
  std::string text = json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace);
  c10::ReplaceAll(text, "<", "\\u003c");
  c10::ReplaceAll(text, ">", "\\u003e");
  c10::ReplaceAll(text, "&", "\\u0026");
  return text;
}

}  // namespace

std::string report_page(const std::vector<RunFolder>& runs) {
  const std::string frame = files_ending_in(".html");
  std::string page;
  std::size_t done = 0;
  // In the order of the frame: what is put in is never searched.
  const std::pair<std::string, std::string> parts[] = {{"{{style}}", files_ending_in(".css")},
                                                       {"{{data}}", harmless_json(page_data(runs))},
                                                       {"{{script}}", files_ending_in(".js")}};
  for (const auto& [mark, content] : parts) {
    const std::size_t at = frame.find(mark, done);
    page += frame.substr(done, at - done) + content;
    done = at + mark.size();
  }
  return page + frame.substr(done);
}

}  // namespace duet
