# The library: every source in its folders, and the headers that duet.h names.
set(DUET_FOLDERS base io data metrics checkpoint distributed optim core eager graph hooks)

# duet_sources(VARIABLE FOLDER...): all sources below the folders.
function(duet_sources variable)
  list(TRANSFORM ARGN APPEND "/*.cpp")
  file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" ${ARGN})
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

add_library(duet)  # static, or shared where BUILD_SHARED_LIBS says so
add_library(duet::duet ALIAS duet)
duet_sources(sources ${DUET_FOLDERS})
list(REMOVE_ITEM sources base/log.cpp base/detail/caller_words.cpp base/detail/one_line.cpp)  # compiled apart
list(APPEND sources make_trainer.cpp)

# The build picks the platform, functions do not: of each pair of files one.
function(duet_choose condition with without)
  set(unwanted ${without})
  if(NOT ${condition})
    set(unwanted ${with})
  endif()
  list(REMOVE_ITEM sources ${unwanted})
  set(sources ${sources} PARENT_SCOPE)
endfunction()

file(GLOB _wheel_nccl "${DUET_TORCH_DIR}/../nvidia/nccl/include")
find_path(DUET_NCCL_INCLUDE nccl.h HINTS ${_wheel_nccl} "$ENV{CUDA_HOME}/include")
set(has_nccl FALSE)
if(DUET_TORCH_CUDA AND DUET_NCCL_INCLUDE)
  set(has_nccl TRUE)
endif()
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mavx512f DUET_HAVE_AVX512)  # and with it -mavx2
set(avx_files graph/kernels/avx2_kernels.cpp graph/kernels/avx512_kernels.cpp)
duet_choose(DUET_TORCH_CUDA graph/cuda/cuda_graph.cpp graph/cuda/no_cuda_graph.cpp)
duet_choose(has_nccl distributed/detail/nccl_backend.cpp distributed/detail/no_nccl_backend.cpp)
duet_choose(DUET_HAVE_AVX512 "${avx_files}" graph/kernels/no_avx_kernels.cpp)
target_sources(duet PRIVATE ${sources})

if(has_nccl)
  set_source_files_properties(distributed/detail/nccl_backend.cpp PROPERTIES
    INCLUDE_DIRECTORIES "${DUET_NCCL_INCLUDE};${DUET_CUDA_INCLUDES}")
endif()
set_source_files_properties(graph/cuda/cuda_graph.cpp PROPERTIES INCLUDE_DIRECTORIES "${DUET_CUDA_INCLUDES}")
# Compiled for one kind of CPU, called only on it. No contraction: the sources say where a multiply-add is fused.
set(bitexact_options -mfma -ffp-contract=off)
set_source_files_properties(graph/kernels/avx512_kernels.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON  # without warnings: GCC bug 105593
  COMPILE_OPTIONS "-mavx512f;${bitexact_options};$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized>")
set_source_files_properties(graph/kernels/avx2_kernels.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON
  COMPILE_OPTIONS "-mavx2;${bitexact_options}")

# Public is what duet.h names; the other headers are not installed.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS duet.h)
file(STRINGS duet.h public_headers REGEX "^#include \"")
list(APPEND public_headers "#include \"data/torch_data_source.h\"")  # opt-in: it costs what torch/torch.h costs
list(TRANSFORM public_headers REPLACE "^#include \"([^\"]+)\".*" "${PROJECT_SOURCE_DIR}/\\1")
target_sources(duet PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES
  "${PROJECT_SOURCE_DIR}/duet.h" ${public_headers})
# Users write <duet/duet.h>, from the build tree too.
set(DUET_INCLUDE_ROOT "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${DUET_INCLUDE_ROOT}")
if(NOT EXISTS "${DUET_INCLUDE_ROOT}/duet")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}" "${DUET_INCLUDE_ROOT}/duet" SYMBOLIC)
endif()
target_include_directories(duet
  PUBLIC $<BUILD_INTERFACE:${DUET_INCLUDE_ROOT}>
  PRIVATE "${DUET_XXHASH_INCLUDE}")

target_link_libraries(duet
  PUBLIC duet_torch
  PRIVATE $<BUILD_INTERFACE:duet_options> $<BUILD_INTERFACE:duet_log> ZLIB::ZLIB PNG::PNG JPEG::JPEG Threads::Threads ${CMAKE_DL_LIBS}
          $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
target_compile_features(duet PUBLIC cxx_std_20)
target_compile_definitions(duet PRIVATE DUET_VERSION="${PROJECT_VERSION}")
set_target_properties(duet PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
duet_compile_fast(duet)
