# duet_sanitized(NAME SANITIZERS FOLDER...): the object library duet_NAME, these folders once more under sanitizers. Test programs
# linked with it (duet_sanitized_tests() in tests/) take the rest from the plain build, which keeps this to a few minutes;
# the presets asan and tsan put everything under sanitizers.
define_property(TARGET PROPERTY DUET_SANITIZERS BRIEF_DOCS "How its objects are linked" FULL_DOCS "How its objects are linked")
function(duet_sanitized name sanitizers)
  list(JOIN ARGN "|" folders)
  set(files ${sources})
  list(FILTER files INCLUDE REGEX "^(${folders})/")
  add_library(duet_${name} OBJECT EXCLUDE_FROM_ALL ${files})
  set_target_properties(duet_${name} PROPERTIES DUET_SANITIZERS -fsanitize=${sanitizers})
  target_compile_options(duet_${name} PRIVATE -fsanitize=${sanitizers} -fno-omit-frame-pointer -g1 -O1)
  target_compile_definitions(duet_${name} PRIVATE $<TARGET_PROPERTY:duet,COMPILE_DEFINITIONS>)
  target_include_directories(duet_${name} PRIVATE $<TARGET_PROPERTY:duet,INCLUDE_DIRECTORIES>)
  target_link_libraries(duet_${name} PRIVATE
    duet_torch duet_options ZLIB::ZLIB PNG::PNG JPEG::JPEG nlohmann_json::nlohmann_json)
  duet_compile_fast(duet_${name})
endfunction()

if(DUET_BUILD_TESTS)  # what touches raw memory
  duet_sanitized(memory address,undefined io checkpoint optim graph)
endif()
