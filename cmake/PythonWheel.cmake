# `pip install .` and `pip wheel .`: the package, the program and the C++ library, for the torch of the environment that they
# are installed into.
set(BUILD_SHARED_LIBS ON)  # one library for all three
set(CMAKE_INSTALL_LIBDIR lib)
# From lib/, bin/ and the module to lib/, and to the torch beside the package with its wheels of CUDA: before
# LD_LIBRARY_PATH, as torch's own libraries look, which may name another LibTorch.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
add_link_options(-Wl,--disable-new-dtags)
set(CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/bundled" "$ORIGIN/lib" "$ORIGIN/../lib" "$ORIGIN/../../torch/lib"
  "$ORIGIN/../../nvidia/cu13/lib" "$ORIGIN/../../nvidia/cuda_runtime/lib")
# A program that links the library may have others of these.
add_link_options("$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:-Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/hide_bundled.map>")

# pip hides that environment from the build by these variables.
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env --unset=PYTHONPATH --unset=PYTHONNOUSERSITE "${Python3_EXECUTABLE}" -P -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE wheel_torch OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT wheel_torch)
  message(FATAL_ERROR "[duet] ${Python3_EXECUTABLE} has no torch; install it first: pip install torch==2.15.*")
endif()
set(DUET_TORCH "${wheel_torch}" CACHE PATH "LibTorch folder (holds include/ and lib/)" FORCE)

# Named all at once, before one find_package after the other ends the build.
set(missing)
foreach(header_and_package
    spdlog/spdlog.h=libspdlog-dev nlohmann/json.hpp=nlohmann-json3-dev gloo/context.h=libgloo-dev
    xxhash.h=libxxhash-dev png.h=libpng-dev jpeglib.h=libjpeg62-turbo-dev zlib.h=zlib1g-dev yaml-cpp/yaml.h=libyaml-cpp-dev CLI/CLI.hpp=libcli11-dev)
  string(REPLACE "=" ";" pair "${header_and_package}")
  list(GET pair 0 header)
  list(GET pair 1 package)
  find_path(found_${package} "${header}")
  if(NOT found_${package})
    list(APPEND missing "${package}")
  endif()
endforeach()
if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "[duet] headers are missing; install them, then call pip again: sudo apt-get install ${missing}")
endif()
