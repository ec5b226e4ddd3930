# find_package(duet) for other projects: library, headers, and the module that finds their LibTorch.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/duet")
install(TARGETS duet duet_log EXPORT duet-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/duet")
target_include_directories(duet INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(EXPORT duet-targets NAMESPACE duet:: DESTINATION "${_package_dir}")
configure_package_config_file(cmake/duet-config.cmake.in "${PROJECT_BINARY_DIR}/duet-config.cmake"
  INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/duet-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/duet-config.cmake" "${PROJECT_BINARY_DIR}/duet-config-version.cmake"
  cmake/DuetTorch.cmake DESTINATION "${_package_dir}")
