# cmake -DOUTPUT=x.cpp -DFILES=a;b -P EmbedFiles.cmake: the texts of files as a C++ source that defines
# duet::report_page_files() (cli/runs/report_page.h).
set(entries "")
foreach(file IN LISTS FILES)
  file(READ "${file}" text)
  get_filename_component(name "${file}" NAME)
  string(FIND "${text}" ")embedded\"" bad)
  if(NOT bad EQUAL -1)
    message(FATAL_ERROR "${file} holds )embedded\", which ends its string in C++; write it differently")
  endif()
  string(APPEND entries "      {\"${name}\", R\"embedded(${text})embedded\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "#include \"cli/runs/report_page.h\"\n
namespace duet {\n
std::vector<std::pair<std::string_view, std::string_view>> report_page_files() {
  return {\n${entries}  };
}\n
}  // namespace duet\n")
