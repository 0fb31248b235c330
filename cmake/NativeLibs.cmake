# dist_native_libs(<variable>): the system libraries that a program needs when it links libdist.a.
#
# They are those of Rust's standard library, since libdist itself calls nothing but libc. rustc names them for an empty
# crate at once, where asking for the crate proper would compile it a second time. Consumers link the static library
# in the tests, so a dependency that brings a library of its own would be noticed.
function(dist_native_libs variable)
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/native_libs")
  file(WRITE "${probe}.rs" "")
  execute_process(
    COMMAND "${RUSTC_EXECUTABLE}" --crate-type staticlib --print native-static-libs -o "${probe}.a" "${probe}.rs"
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT status EQUAL 0 OR NOT said MATCHES "native-static-libs: ([^\n]+)")
    message(FATAL_ERROR "rustc did not name the libraries that static linking needs:\n${said}")
  endif()
  file(REMOVE "${probe}.a")
  string(STRIP "${CMAKE_MATCH_1}" libs)
  separate_arguments(libs UNIX_COMMAND "${libs}")
  list(REMOVE_DUPLICATES libs)
  set(${variable} "${libs}" PARENT_SCOPE)
endfunction()
