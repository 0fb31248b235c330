# cmake -DINPUT=<file> -DOUTPUT=<file> -DOBJCOPY=<program> -DKEEP_DEBUG=<ON|OFF> -P StageFile.cmake
#
# Copies a built file to OUTPUT without the symbols and the debug information that no linker needs. With KEEP_DEBUG the
# debug information goes to OUTPUT.debug, and OUTPUT refers to this file, where debuggers and back-traces find it.
# A file that would not change is not written, so that nothing is linked again.
get_filename_component(name "${OUTPUT}" NAME)
get_filename_component(folder "${OUTPUT}" DIRECTORY)
set(work "${OUTPUT}.work")
file(REMOVE_RECURSE "${work}")
file(MAKE_DIRECTORY "${work}")

function(run)
  execute_process(COMMAND ${ARGV} WORKING_DIRECTORY "${work}" RESULT_VARIABLE status ERROR_VARIABLE problem)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "cannot strip ${INPUT}: ${problem}")
  endif()
endfunction()

set(results "${name}")
if(name MATCHES "\\.a$")
  run("${OBJCOPY}" --strip-debug "${INPUT}" "${name}")
else()
  set(link "")
  if(KEEP_DEBUG)
    run("${OBJCOPY}" --only-keep-debug --compress-debug-sections "${INPUT}" "${name}.debug")
    set(link "--add-gnu-debuglink=${name}.debug")
    list(APPEND results "${name}.debug")
  endif()
  run("${OBJCOPY}" --strip-unneeded ${link} "${INPUT}" "${name}")
endif()
list(TRANSFORM results PREPEND "${work}/")
run("${CMAKE_COMMAND}" -E copy_if_different ${results} "${folder}")
file(REMOVE_RECURSE "${work}")
