# Imported targets for a LibTorch, without find_package(Torch): that needs nvcc and an architecture list, and
# duet compiles no .cu file.
#
# In:  DUET_TORCH (cache or environment): the folder that holds include/ and lib/; otherwise CMAKE_PREFIX_PATH is
#      searched, then the project's .venv.
# Out: target duet::torch; variables DUET_TORCH_DIR, DUET_TORCH_VERSION, DUET_TORCH_PROGRAMS (the folder of the Python that
#      this LibTorch's wheel is installed for, or empty), DUET_TORCH_CUDA (ON if this LibTorch has
#      CUDA, and NVIDIA's libraries and headers were found), DUET_CUDA_INCLUDES (what sources that include CUDA's
#      headers need).

if(TARGET duet_torch)  # found before
  return()
endif()

# Before CMake 3.21 a variable of the cache takes the place of a plain one of its name, such as that of the package.
if(NOT DEFINED DUET_TORCH)
  set(DUET_TORCH "$ENV{DUET_TORCH}" CACHE PATH "LibTorch folder (holds include/ and lib/)")
endif()

file(GLOB _venv_torch "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
unset(DUET_TORCH_DIR CACHE)
find_path(DUET_TORCH_DIR NAMES include/ATen/ATen.h
  HINTS "${DUET_TORCH}" PATHS ${CMAKE_PREFIX_PATH} ${_venv_torch}
  PATH_SUFFIXES . libtorch torch ../..  # the last for torch.utils.cmake_prefix_path
  NO_DEFAULT_PATH)
if(DUET_TORCH AND NOT EXISTS "${DUET_TORCH}/include/ATen/ATen.h")
  message(FATAL_ERROR "DUET_TORCH=${DUET_TORCH} holds no include/ATen/ATen.h; name the folder that has include/ and lib/")
endif()
if(NOT DUET_TORCH_DIR)
  message(FATAL_ERROR "No LibTorch found. Run scripts/duet once (it installs the pinned wheel into .venv), or pass "
    "-DDUET_TORCH=/path/to/libtorch, or put that path into CMAKE_PREFIX_PATH. That of a Python: "
    "python -c 'import torch; print(torch.__path__[0])'")
endif()
get_filename_component(DUET_TORCH_DIR "${DUET_TORCH_DIR}" ABSOLUTE)
get_filename_component(DUET_TORCH_PROGRAMS "${DUET_TORCH_DIR}/../../../../bin" ABSOLUTE)
if(NOT EXISTS "${DUET_TORCH_PROGRAMS}/python3")
  set(DUET_TORCH_PROGRAMS)
endif()

file(STRINGS "${DUET_TORCH_DIR}/include/torch/headeronly/version.h" _version REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" DUET_TORCH_VERSION "${_version}")
if(DUET_TORCH_VERSION VERSION_LESS 2.11 OR DUET_TORCH_VERSION VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "LibTorch ${DUET_TORCH_VERSION} at ${DUET_TORCH_DIR} is not supported, expected 2.11 to 2.15. Install "
    "one of these (pip install torch==2.15.*), or name the folder of another in -DDUET_TORCH=/path/to/libtorch.")
endif()

function(_duet_torch_library name)
  add_library(duet_torch::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(duet_torch::${name} PROPERTIES IMPORTED_LOCATION "${DUET_TORCH_DIR}/lib/lib${name}.so")
endfunction()

_duet_torch_library(c10)
_duet_torch_library(torch_cpu)
_duet_torch_library(torch)

add_library(duet_torch INTERFACE IMPORTED GLOBAL)
add_library(duet::torch ALIAS duet_torch)
target_include_directories(duet_torch SYSTEM INTERFACE
  "${DUET_TORCH_DIR}/include" "${DUET_TORCH_DIR}/include/torch/csrc/api/include")
# LibTorch's libraries export a std::filesystem of their own, which crashes when called from outside: libstdc++ must
# come first in the list of needed libraries.
target_link_options(duet_torch INTERFACE "SHELL:-Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state")
# What LibTorch's libraries need they find by themselves; the linker would take an older NCCL of this machine for it.
target_link_options(duet_torch INTERFACE -Wl,--allow-shlib-undefined)
target_compile_features(duet_torch INTERFACE cxx_std_20)

# CUDA: libraries of this LibTorch plus headers from its sibling wheels or from a toolkit. Of a wheel that has only some of
# NVIDIA's libraries beside it the CPU half is used, which needs no others.
set(DUET_TORCH_CUDA OFF)
set(DUET_CUDA_INCLUDES)
set(_wheels "${DUET_TORCH_DIR}/../nvidia")
if(EXISTS "${DUET_TORCH_DIR}/lib/libtorch_cuda.so" AND (EXISTS "${_wheels}/cudnn" OR NOT EXISTS "${_wheels}"))
  file(GLOB _wheel_includes "${_wheels}/*/include")
  file(GLOB _wheel_libraries "${_wheels}/*/lib")
  find_path(DUET_CUDA_INCLUDE NAMES cuda_runtime_api.h
    HINTS ${_wheel_includes} "$ENV{CUDA_HOME}/include" PATHS /usr/local/cuda/include /usr/include)
  find_library(DUET_CUDART NAMES libcudart.so.13 libcudart.so.12 cudart NAMES_PER_DIR
    HINTS ${_wheel_libraries} "$ENV{CUDA_HOME}/lib64" PATHS /usr/local/cuda/lib64)
  if(DUET_CUDA_INCLUDE)
    set(DUET_TORCH_CUDA ON)
  else()
    message(WARNING "This LibTorch has CUDA but cuda_runtime_api.h was not found: building for the CPU only. "
      "Set CUDA_HOME to add CUDA.")
  endif()
endif()

if(DUET_TORCH_CUDA)
  _duet_torch_library(c10_cuda)
  _duet_torch_library(torch_cuda)
  # ATen's CUDA headers include those of cuSPARSE, cuSOLVER and others, which the wheels keep apart.
  set(DUET_CUDA_INCLUDES "${DUET_CUDA_INCLUDE}" ${_wheel_includes})
  # c10_cuda must stay although nothing names it directly: it registers the CUDA device.
  target_link_libraries(duet_torch INTERFACE duet_torch::torch duet_torch::torch_cpu duet_torch::c10
    -Wl,--no-as-needed duet_torch::torch_cuda duet_torch::c10_cuda -Wl,--as-needed)
  if(DUET_CUDART)
    target_link_libraries(duet_torch INTERFACE "${DUET_CUDART}")
  endif()
else()  # not libtorch.so, which needs libtorch_cuda.so where there is one
  target_link_libraries(duet_torch INTERFACE duet_torch::torch_cpu duet_torch::c10)
endif()
message(STATUS "LibTorch ${DUET_TORCH_VERSION} at ${DUET_TORCH_DIR} (CUDA code: ${DUET_TORCH_CUDA})")
