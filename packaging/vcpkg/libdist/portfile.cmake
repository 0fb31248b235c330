# Builds the source tree that contains this port. Cargo must be on the search path, because vcpkg has no Rust.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_program(CARGO cargo HINTS "$ENV{HOME}/.cargo/bin" REQUIRED)
get_filename_component(cargo_folder "${CARGO}" DIRECTORY)
vcpkg_add_to_path("${cargo_folder}")
# One build of cargo has both libraries, and no debug variant is needed: it has the same interface.
set(VCPKG_BUILD_TYPE release)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME dist CONFIG_PATH lib/cmake/dist)
vcpkg_fixup_pkgconfig()
vcpkg_copy_tools(TOOL_NAMES distrun dist-store dist-doctor dist-bench AUTO_CLEAN)
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
