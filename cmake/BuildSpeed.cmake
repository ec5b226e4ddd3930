# What makes builds fast: ccache, a fast linker, precompiled headers.
if(NOT CMAKE_CXX_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_program(DUET_CCACHE ccache)
  if(DUET_CCACHE)
    # ccache must look through the precompiled header; folders of a checkout must not decide about a hit.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${DUET_CCACHE}")
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endif()

find_program(DUET_MOLD mold)
if(DUET_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # LibTorch is built by GCC, whose mangling of requires-clauses is that of clang 17.
  add_compile_options(-fclang-abi-compat=17)
  string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endif()

option(DUET_PRECOMPILE "Parse LibTorch's and the standard library's headers once" ON)
set(DUET_UNITY_SIZE 12 CACHE STRING "How many sources of a folder are compiled as one; 1: each alone")

# duet_compile_fast(TARGET [PCH_OF]): headers that most files include are parsed once, sources are compiled a few at a
# time: parsing is most of what a source costs. No file may rely on either for what it uses itself. Sources compiled
# together are of one folder, so that neither the platform nor a new file elsewhere changes who meets whom.
function(duet_compile_fast target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(SORT sources)
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    string(MAKE_C_IDENTIFIER "of_${folder}" group)
    list(APPEND members_${group} "${source}")
    list(LENGTH members_${group} count)
    math(EXPR part "(${count} - 1) / ${DUET_UNITY_SIZE}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}_${part}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(DUET_PRECOMPILE AND ARGC GREATER 1)
    target_precompile_headers(${target} REUSE_FROM ${ARGV1})
  elseif(DUET_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/precompiled.h")
  endif()
endfunction()
