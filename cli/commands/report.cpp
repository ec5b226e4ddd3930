#include "cli/report.h"
#include <filesystem>
#include <iostream>
#include <system_error>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/runs/report_page.h"
#include "cli/runs/text_columns.h"
#include "io/file_io.h"

namespace duet {

// `duet report`: one or several runs as a page.

namespace {

// As a whole or not at all: a browser may be looking at the page of before. It takes the place of what is there: of a
// device such as /dev/stdout, or a link to one, nothing would be left.
void write_page(const std::string& path, const std::string& page) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  std::string why = "it is a folder, a link, a pipe or a device";
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    const std::exception_ptr failed = caught([&] { file_io::replace_file(path, page); });
    if (!failed) return;
    why = text_of(failed);
  }
  throw ConfigError("[duet] cannot write the page '" + one_line(path) + "' (" + why +
                    "), expected a file that can be made; give --output FILE");
}

}  // namespace

int report_command(const Arguments& arguments) {
  const std::vector<RunFolder> runs = read_run_folders(arguments.runs);
  const std::string path = arguments.output.empty() ? runs.front().path + "/report.html" : arguments.output;
  const std::string page = report_page(runs);
  write_page(path, page);
  for (const RunFolder& run : runs) {
    std::cout << one_line(run.path) << ": " << to_string(run.state) << ", " << run.log.step << " steps";
    if (run.log.lines == 0) std::cout << ", nothing logged yet";
    if (const int64_t lines = run.log.unreadable_lines; lines > 0) {
      std::cout << ", " << lines << (lines == 1 ? " line is" : " lines are") << " not readable";
    }
    std::cout << "\n";
  }
  std::cout << "wrote " << one_line(path) << " (" << readable_bytes(static_cast<int64_t>(page.size())) << ")"
            << std::endl;
  return 0;
}

}  // namespace duet
