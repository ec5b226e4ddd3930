# duet_memory: the folders that touch raw memory once more, under AddressSanitizer and UndefinedBehaviorSanitizer. Test
# programs linked with it (duet_memory_tests() in tests/) take the rest from the plain build, which keeps this to a few
# minutes; the preset asan puts everything under sanitizers.
set(memory_sources ${sources})
list(FILTER memory_sources INCLUDE REGEX "^(io|checkpoint|optim|graph)/")
add_library(duet_memory OBJECT ${memory_sources})
set(DUET_MEMORY_SANITIZERS -fsanitize=address,undefined)
target_compile_options(duet_memory PRIVATE ${DUET_MEMORY_SANITIZERS} -fno-omit-frame-pointer -g1 -O1)
target_compile_definitions(duet_memory PRIVATE $<TARGET_PROPERTY:duet,COMPILE_DEFINITIONS>)
target_include_directories(duet_memory PRIVATE $<TARGET_PROPERTY:duet,INCLUDE_DIRECTORIES>)
target_link_libraries(duet_memory PRIVATE duet_torch duet_options ZLIB::ZLIB PNG::PNG JPEG::JPEG nlohmann_json::nlohmann_json)
duet_compile_fast(duet_memory)
