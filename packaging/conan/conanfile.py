"""Builds libdist from the source tree that contains this recipe, through CMake and cargo."""

from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

ROOT = Path("..", "..")
# What the build reads. The folders of builds are not in this list.
SOURCES = (
    "ARCHITECTURE.md",
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "CMakeLists.txt",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "build.rs",
    "cbindgen.toml",
    "c-examples/*",
    "cmake/*",
    "docs/*",
    "ffi-tests/rust/*",
    "headers/*",
    "include/*",
    "src/*",
    "tools/*",
    "xtask/*",
)


class LibdistConan(ConanFile):
    name = "libdist"
    description = "Collective communication between the processes of a training job"
    license = "Apache-2.0"
    topics = ("collectives", "all-reduce", "machine-learning", "distributed")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"cargo_profile": ["release", "dev", "demo"]}
    default_options = {"cargo_profile": "release"}

    def set_version(self):
        manifest = load(self, str(Path(self.recipe_folder) / ROOT / "Cargo.toml"))
        self.version = manifest.split('[workspace.package]\nversion = "')[1].split('"')[0]

    def export_sources(self):
        root = str(Path(self.recipe_folder) / ROOT)
        for pattern in SOURCES:
            copy(self, pattern, root, self.export_sources_folder, excludes="*/target/*")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("libdist runs on Linux only")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["DIST_CARGO_PROFILE"] = str(self.options.cargo_profile)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, str(Path(self.package_folder) / "licenses"))

    def package_info(self):
        # Consumers use the package files of libdist, and no files that Conan writes.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [str(Path("lib", "cmake", "dist"))]
        self.cpp_info.libs = ["dist"]
        self.cpp_info.set_property("pkg_config_name", "dist")
        self.buildenv_info.prepend_path("PATH", str(Path(self.package_folder) / "bin"))
        self.runenv_info.prepend_path("PATH", str(Path(self.package_folder) / "bin"))
