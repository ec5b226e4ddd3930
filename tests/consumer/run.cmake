# cmake -DBUILD=... -DSOURCE=... -DWORK=... -DCOMPILER=... -DGENERATOR=... -P run.cmake
# Installs the build into an empty folder, then builds and runs projects that find it there: this one, and the template
# examples/07_project with its tests.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(build source folder)
  run("${CMAKE_COMMAND}" -S "${source}" -B "${folder}" -G "${GENERATOR}" -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${WORK}/installed")
  run("${CMAKE_COMMAND}" --build "${folder}")
endfunction()

file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/installed")
build("${SOURCE}" "${WORK}/build")
run("${WORK}/build/consumer")
build("${SOURCE}/../../examples/07_project" "${WORK}/project")
run("${CMAKE_CTEST_COMMAND}" --test-dir "${WORK}/project" --output-on-failure)
run("${WORK}/project/spirals" help Spirals)
file(REMOVE_RECURSE "${WORK}")
