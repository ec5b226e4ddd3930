# cmake -DBUILD=... -DSOURCE=... -DWORK=... -DCOMPILER=... -DGENERATOR=... -DPYTHON=... -P run.cmake
# Installs the build into an empty folder, then builds and runs projects that find it there: this one, and those of the
# pages, with the pages' own commands.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(ENV{CXX} "${COMPILER}")
set(ENV{CMAKE_GENERATOR} "${GENERATOR}")
set(ENV{CMAKE_BUILD_TYPE} Release)
file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/duet")
run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/build" "-DCMAKE_PREFIX_PATH=${WORK}/duet")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/consumer")
run("${PYTHON}" "${SOURCE}/../docs/run_blocks.py" --program "${BUILD}/cli/duet" --cpp "${BUILD}/tests/docs/duet_docs_blocks"
  --installed "${WORK}" --page docs/tutorials/own_model.md --page docs/research_loops.md)
file(REMOVE_RECURSE "${WORK}")
