# find_package(duet) for other projects: library, headers, and the module that finds their LibTorch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/duet")
install(TARGETS duet EXPORT duet-targets RUNTIME_DEPENDENCY_SET duet_bundled
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/duet")
target_include_directories(duet INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(EXPORT duet-targets NAMESPACE duet:: DESTINATION "${_package_dir}")
configure_package_config_file(cmake/duet-config.cmake.in "${PROJECT_BINARY_DIR}/duet-config.cmake"
  INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/duet-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/duet-config.cmake" "${PROJECT_BINARY_DIR}/duet-config-version.cmake"
  cmake/DuetTorch.cmake DESTINATION "${_package_dir}")

if(SKBUILD)  # what a bare machine may lack goes along, with its licenses
  install(RUNTIME_DEPENDENCY_SET duet_bundled PRE_INCLUDE_REGEXES "^lib(jpeg|png|yaml-cpp|z)[0-9]*\\." PRE_EXCLUDE_REGEXES ".*"
    LIBRARY DESTINATION lib)
  file(GLOB _licenses /usr/share/doc/libjpeg62-turbo/copyright /usr/share/doc/libpng16-16/copyright
    /usr/share/doc/libyaml-cpp0.7/copyright /usr/share/doc/zlib1g/copyright)
  foreach(_license IN LISTS _licenses)
    get_filename_component(_folder "${_license}" DIRECTORY)
    get_filename_component(_name "${_folder}" NAME)
    install(FILES "${_license}" DESTINATION licenses RENAME "${_name}.txt")
  endforeach()
endif()
