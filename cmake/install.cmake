# find_package(duet) for other projects: library, headers, and the module that finds their LibTorch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/duet")
install(TARGETS duet EXPORT duet-targets RUNTIME_DEPENDENCY_SET duet_bundled
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/duet")
target_include_directories(duet INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(EXPORT duet-targets NAMESPACE duet:: DESTINATION "${_package_dir}")
# That of a wheel is beside it.
set(_torch "${DUET_TORCH_DIR}")
if(SKBUILD)
  set(_torch "\${PACKAGE_PREFIX_DIR}/../torch")
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _torch_minor "${DUET_TORCH_VERSION}")
configure_package_config_file(cmake/duet-config.cmake.in "${PROJECT_BINARY_DIR}/duet-config.cmake"
  INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/duet-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/duet-config.cmake" "${PROJECT_BINARY_DIR}/duet-config-version.cmake"
  cmake/DuetTorch.cmake DESTINATION "${_package_dir}")

if(SKBUILD)  # what a bare machine may lack goes along, with its licenses
  install(RUNTIME_DEPENDENCY_SET duet_bundled PRE_INCLUDE_REGEXES "^lib(jpeg|png|yaml-cpp|z)[0-9]*\\." PRE_EXCLUDE_REGEXES ".*"
    LIBRARY DESTINATION lib/bundled)
  foreach(_package libjpeg62-turbo-dev libpng-dev libyaml-cpp-dev zlib1g-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
      libcli11-dev libxxhash-dev libgloo-dev)
    install(FILES "/usr/share/doc/${_package}/copyright" DESTINATION licenses RENAME "${_package}.txt" OPTIONAL)
  endforeach()
endif()
